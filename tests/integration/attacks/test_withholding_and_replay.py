"""An aggregator that withholds, repeats and asks again; a site that crashes or comes from a backup.

What holds in all of it: the charge is durable before the first byte leaves and is never given
back, and no step of an attempt ever has a second, different output.
"""

import asyncio
import shutil
from dataclasses import replace

import numpy as np
import pytest

from edge_node import service
from edge_node.lock import FolderLock
from edge_node.reconcile import reconcile
from privacy.errors import Reason, UsageError
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    DealtShares,
    SurvivorSignature,
    UnmaskShares,
)
from tests.support.attacker_knowledge import Knowledge, is_noise
from tests.support.hostile_aggregator import hostile
from tests.support.hostile_wire import Uploaded
from tests.support.live_site import budgets
from tests.support.wire_runs import run
from tidegate import messages as m


async def back(evil):
    """Take the crashed or stopped site up again."""
    evil.site.start()
    return await evil.greet()


# --- withheld steps -------------------------------------------------------------------------------


def test_a_withheld_step_3_costs_the_site_its_charge_and_gives_no_free_second_vector(tmp_path):
    """Never asked for step 3, the site pays all the same, and pays again for fresh noise."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            first = await evil.attempt()
            await first.deal()
            await first.upload()
            friend = first.others[0]
            knowledge = Knowledge(first, [friend])
            assert knowledge.opened() == set()
            assert is_noise(knowledge.rest(first.victim), first.x[first.victim], first.bits)
            assert evil.charges() == 1
            await evil.train(1)
            second = await evil.attempt(1, attempt=2)
            assert not np.array_equal(second.x[second.victim], first.x[first.victim])
            await second.run_honestly()
            assert evil.charges() == 2
            abort = next(said for said in evil.said if isinstance(said, AbortSignature))
            assert abort.ctx == first.ctx
            await evil.goes_on(2)

    run(scenario())


def test_the_charge_is_durable_before_the_first_byte_leaves(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            assert evil.charges() == 0
            upload = await attempt.upload_of_victim()
            assert upload.charges_at_first_byte == 1
            await evil.goes_on(2)

    run(scenario())


def test_a_cut_upload_is_repeated_byte_by_byte_for_the_same_charge(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            evil.cut_uploads = 1
            await attempt.upload()
            await attempt.vote()
            await attempt.unmask()
            honest = frozenset(attempt.all) - {attempt.others[0]}
            assert Knowledge(attempt, attempt.others[:1]).opened() == {honest}
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_an_attempt_aborted_before_the_charge_is_retried_with_the_same_update(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            first = await evil.attempt()
            await first.deal()
            evil.send(AbortRequest(first.ctx, "the link is slow today"))
            assert (await evil.expect(AbortSignature)).ctx == first.ctx
            await evil.expect(m.Ready)
            second = await evil.attempt(1, attempt=2)
            np.testing.assert_array_equal(second.x[second.victim], first.x[first.victim])
            await second.run_honestly()
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_an_attempt_aborted_after_the_charge_is_retried_with_fresh_noise_and_a_new_charge(tmp_path):
    """Both masked vectors and all shares of the second attempt open nothing of the first."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            first = await evil.attempt()
            await first.deal()
            await first.upload()
            evil.send(AbortRequest(first.ctx, "once more, please"))
            await evil.expect(AbortSignature)
            evil.send(evil.request)
            await evil.expect(m.Ready)
            second = await evil.attempt(1, attempt=2)
            difference_D = second.x[second.victim] - first.x[first.victim]
            assert np.count_nonzero(difference_D) > len(difference_D) / 2
            await second.run_honestly()
            assert Knowledge(first, first.others[:1]).opened() == set()
            assert evil.charges() == 2
            await evil.goes_on(2)

    run(scenario())


def test_attempts_without_end_are_ended_by_the_budget(tmp_path):
    """Each attempt that took a vector was paid for; then the site says no, before it trains."""

    async def scenario():
        rate = b"sampling_rate = 0.2"
        async with hostile(tmp_path, epsilon=4.0, joined=False) as evil:
            toml = evil.toml.replace(b"sampling_rate = 0.01", rate).replace(
                b"epsilon = 3.0", b"epsilon = 30.0"
            )
            await evil.greet(stock=4)
            assert (await evil.offer(evil.make_job(toml))).accepted
            for number in range(1, 40):
                answer = await evil.train(1)
                if isinstance(answer, m.NotReady):
                    break
                attempt = await evil.attempt(1, attempt=number)
                await attempt.deal()
                await attempt.upload_of_victim()
                assert evil.charges() == len(evil.uploads) == number
            assert answer.reason == Reason.BUDGET_EXHAUSTED
            (line,) = budgets(evil.site)
            assert 0 < line.spent_epsilon <= 4.0
            assert line.charges == len(evil.uploads) > 1

    run(scenario())


# --- replays --------------------------------------------------------------------------------------


def test_a_replayed_attempt_is_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            first = await evil.attempt(1, attempt=5)
            await first.run_honestly()
            await evil.train(2)
            for number, attempt in ((1, 5), (1, 9), (2, 0)):
                context = replace(first.roster.context, round=number, attempt=max(1, attempt))
                evil.send(replace(first.roster, context=context))
                failed = await evil.expect(m.AttemptFailed)
                assert failed.reason in (Reason.WRONG_CONTEXT, Reason.REPLAY)
            second = await evil.attempt(2, attempt=3)
            await second.deal()
            evil.send(AbortRequest(second.ctx, "stop"))
            await evil.expect(m.Ready)
            for attempt in (3, 2, 1):
                evil.send((await evil.attempt(2, attempt=attempt)).roster)
                await evil.refused(Reason.REPLAY, "used up")
            assert evil.charges() == 1
            await evil.goes_on(3)

    run(scenario())


def test_replayed_frames_of_an_older_attempt_change_nothing(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            old = await evil.attempt()
            await old.deal()
            await old.upload()
            await old.vote()
            await old.unmask()
            await evil.train(2)
            attempt = await evil.attempt(2)
            await attempt.deal()
            await evil.quiet()
            before = len(evil.said)
            evil.send(old.delivery(old.victim))
            evil.send(old.survivor_set(old.all[:4]))
            evil.send(old.quorum())
            evil.send(AbortRequest(old.ctx, "of the old one"))
            evil.send(m.AttemptResult(old.ctx, bytes(32), old.all))
            await evil.quiet()
            assert {type(said) for said in evil.said[before:]} <= {m.BundleStock}
            # Dressed up as frames of this attempt, they are no better.
            evil.send(replace(old.delivery(old.victim), ctx=attempt.ctx))
            await evil.refused(Reason.BAD_SIGNATURE)
            assert evil.charges() == 1
            await evil.goes_on(3)

    run(scenario())


def test_repeated_frames_of_the_live_attempt_get_the_same_bytes(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            evil.send(attempt.roster)
            await evil.expect(DealtShares)
            await attempt.upload()
            await evil.sent(attempt.ctx)
            evil.send(attempt.delivery(attempt.victim))
            await evil.expect(Uploaded)
            await attempt.vote()
            evil.send(attempt.survivor_set(attempt.all))
            await evil.expect(SurvivorSignature)
            await attempt.unmask()
            evil.send(attempt.quorum())
            await evil.expect(UnmaskShares)
            said = [*evil.said, *evil.uploads]
            for kind in (DealtShares, Uploaded, SurvivorSignature, UnmaskShares):
                once, twice = (message for message in said if isinstance(message, kind))
                assert once == twice
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_steps_out_of_order_get_no_answer(tmp_path):
    """Step 4 before 3, 3 before 2: nothing is said, and the attempt goes on as if not asked."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await evil.quiet()
            before = len(evil.said)
            evil.send(attempt.survivor_set(attempt.all))
            forged = attempt.forge_vote(attempt.others[0], attempt.survivor_set(attempt.all))
            evil.send(attempt.quorum([forged]))
            await evil.quiet()
            assert {type(said) for said in evil.said[before:]} <= {m.BundleStock}
            await attempt.upload()
            await attempt.vote()
            await attempt.unmask()
            honest = frozenset(attempt.all) - {attempt.others[0]}
            assert Knowledge(attempt, attempt.others[:1]).opened() == {honest}
            await evil.goes_on(2)

    run(scenario())


# --- crashes, backups, copies ---------------------------------------------------------------------


def test_sharing_again_after_a_crash_gives_identical_bytes(tmp_path):
    """Other shares under the same key and nonce would give both away."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await evil.site.crash()
            await back(evil)
            evil.send(attempt.roster)
            await evil.quiet()
            dealt = [said for said in evil.said if isinstance(said, DealtShares)]
            assert len(dealt) >= 2
            assert all(one == dealt[0] for one in dealt)
            # And with one more member's bundle exchanged, nothing is dealt at all.
            friend = attempt.others[0]
            other = attempt.bundle_of_friend(friend, instance_id=bytes(16))
            evil.send(attempt.with_bundle(friend, other))
            await evil.refused(Reason.EQUIVOCATION)
            assert evil.charges() == 0
            await evil.goes_on(2)

    run(scenario())


def test_a_crash_after_the_charge_gives_the_same_vector_for_the_same_charge(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            await evil.site.crash()
            await back(evil)
            again = await evil.expect_upload(1)
            assert again.data == evil.uploads[0].data
            assert evil.charges() == 1
            await attempt.vote()
            await attempt.unmask()
            honest = frozenset(attempt.all) - {attempt.others[0]}
            assert Knowledge(attempt, attempt.others[:1]).opened() == {honest}
            await evil.goes_on(2)

    run(scenario())


def test_a_site_rolled_back_from_a_backup_refuses_to_work(tmp_path):
    """Its ledger would forget a charge, its slots a signature: the mirror is outside the backup."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            await evil.goes_on(2)
            await evil.site.stop()
            shutil.copytree(evil.site.config.folder, tmp_path / "backup")
            await back(evil)
            await evil.goes_on(3)
            (spent,) = budgets(evil.site)
            await evil.site.stop()
            shutil.rmtree(evil.site.config.folder)
            shutil.copytree(tmp_path / "backup", evil.site.config.folder)
            with pytest.raises(UsageError, match="restored from an older copy"):
                service.open_store(evil.site.config)
            assert evil.charges() == spent.charges - 1, "the backup has forgotten a charge"
            lines = await asyncio.to_thread(reconcile, evil.site.config, accept=True)
            assert "done" in lines[-1]
            hello = await back(evil)
            (made_up,) = budgets(evil.site)
            assert made_up.spent_epsilon >= spent.spent_epsilon
            first = next(message for message in evil.said if isinstance(message, m.Hello))
            assert hello.instance_id != first.instance_id, "its one-time keys are void"
            await evil.goes_on(4)

    run(scenario())


def test_a_backup_with_another_boot_key_has_no_stock_to_replay(tmp_path):
    """A reboot, or a copy of the folder on another machine: no attempt and no bundle lives on."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            old = [attempt.roster.bundles[attempt.victim - 1], *evil.stock]
            await evil.site.stop()
            for path in (evil.site.folder / "boot").iterdir():
                path.unlink()
            hello = await back(evil)
            first = next(message for message in evil.said if isinstance(message, m.Hello))
            assert hello.instance_id != first.instance_id
            fresh, evil.stock = evil.stock, old
            evil.send(attempt.roster)
            evil.send(attempt.delivery(attempt.victim))
            await evil.expect(m.AttemptFailed)
            await evil.train(2)
            replayed = await evil.attempt(2)
            evil.send(replayed.roster)
            await evil.refused(Reason.REPLAY, "stock")
            assert (evil.uploads, evil.charges()) == ([], 0)
            evil.stock = fresh
            await evil.goes_on(3)

    run(scenario())


def test_two_daemons_cannot_share_one_folder(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            with pytest.raises(UsageError, match="another edge node"):
                FolderLock(evil.site.config.folder)
            await evil.goes_on(2)

    run(scenario())
