"""An aggregator that wants a charged update twice: proofs forged, mixed, replayed, and both ways.

What holds in all of it: one charge, one sum that may hold the update. Of the five members one is
the attacker's friend, who signs whatever it likes, an abort and a survivor set of one attempt too.
"""

import numpy as np
import pytest

from privacy.errors import Reason
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    RetryProof,
    RetryVote,
    SurvivorSignature,
)
from privacy.secagg.statements import abort_statement
from tests.support.attacker_knowledge import Knowledge
from tests.support.hostile_aggregator import hostile
from tests.support.wire_runs import run
from tidegate import messages as m


async def sent_in_vain(evil, number=1, attempt=1):
    """Have everybody charged and uploaded in an attempt; gives it with the victim's abort."""
    failed = await evil.attempt(number, attempt)
    await failed.deal()
    await failed.upload()
    evil.send(AbortRequest(failed.ctx, "once more, please"))
    abort = await evil.expect(AbortSignature)
    return failed, RetryVote(abort.sender, abort.signature)


def abort_of_peer(failed, index):
    """Have an honest peer sign the abort."""
    (signed,) = failed.feed(index, AbortRequest(failed.ctx, "stop"))
    return RetryVote(signed.sender, signed.signature)


def abort_of_friend(failed, index):
    """Sign the abort with a friend's key; its machine goes on as if nothing was."""
    site = failed.peers[index]
    cohort = site.attempt.cohort
    return RetryVote(site.me, site.key.sign(abort_statement(cohort.ctx, cohort.rh)))


def proof(failed, *votes):
    return RetryProof(failed.ctx, votes)


async def again(evil):
    """Ask for the same round once more; the site is ready, with the update it then has."""
    answer = await evil.train(1)
    assert isinstance(answer, m.Ready), answer


def same(evil, failed):
    """Say whether the update that lies ready is the one of an attempt before."""
    return np.array_equal(evil.update(), failed.x[failed.victim])


def test_a_proved_update_goes_once_more_uncharged_and_its_first_attempt_never_opens(tmp_path):
    """The friend signs the abort and the set; with it, three of the T = 4 votes can be had."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            first, own = await sent_in_vain(evil)
            honest, friend, *rest = first.others
            votes = (own, abort_of_peer(first, honest), abort_of_friend(first, friend))
            evil.send(proof(first, *votes))
            await again(evil)
            assert same(evil, first)
            second = await evil.attempt(1, attempt=2)
            await second.run_honestly()
            assert evil.charges() == 1
            # Now the first one as well: who has not aborted signs a set that holds the victim.
            message = first.survivor_set(first.all)
            signed = [first.forge_vote(friend, message)]
            for index in rest:
                signed += first.feed(index, message)
            assert len(signed) == 3
            for index in rest:
                assert first.feed(index, first.quorum(signed)) == []
            evil.send(message)
            evil.send(first.quorum(signed))
            await evil.quiet()
            assert not [said for said in evil.said if isinstance(said, SurvivorSignature)][1:]
            assert Knowledge(first, [friend]).opened() == set()
            await evil.goes_on(2)

    run(scenario())


def bad_proofs(first, own, other):
    """Give proofs that fall short by one honest vote, each in its own way."""
    honest, friend, third, _ = first.others
    two = (own, abort_of_friend(first, friend))
    peers_vote = abort_of_peer(first, honest)
    holding = first.forge_vote(third, first.survivor_set(first.all))
    return {
        "too few": (*two,),
        "a signature of another attempt": (*two, other),
        "an abort by another's key": (*two, RetryVote(peers_vote.signer, two[1].signature)),
        "a set that holds the victim": (
            *two,
            RetryVote(holding.sender, holding.signature, first.all, first.all),
        ),
        "that set told as another": (
            *two,
            RetryVote(
                holding.sender,
                holding.signature,
                first.all,
                tuple(i for i in first.all if i != first.victim),
            ),
        ),
        "that set told as an abort": (*two, RetryVote(holding.sender, holding.signature)),
        "an outsider": (*two, RetryVote(b"o" * 32, two[1].signature)),
    }


def test_a_proof_that_lacks_one_honest_vote_frees_nothing(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            old = await evil.attempt()
            await old.deal()
            stale = abort_of_peer(old, old.others[0])
            evil.send(AbortRequest(old.ctx, "stop"))
            await evil.expect(AbortSignature)
            await again(evil)
            first, own = await sent_in_vain(evil, attempt=2)
            for votes in bad_proofs(first, own, stale).values():
                evil.send(proof(first, *votes))
            await again(evil)
            assert not same(evil, first)
            second = await evil.attempt(1, attempt=3)
            await second.run_honestly()
            assert evil.charges() == 2
            await evil.goes_on(2)

    run(scenario())


def test_a_proof_is_for_the_last_sending_and_for_no_other(tmp_path):
    """Replayed, and mixed with votes of the next attempt, it frees the update no second time."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            first, own = await sent_in_vain(evil)
            votes = (own, *(abort_of_peer(first, index) for index in first.others[:2]))
            evil.send(proof(first, *votes))
            evil.send(proof(first, *votes))
            await again(evil)
            second, new = await sent_in_vain(evil, attempt=2)
            assert evil.charges() == 1
            evil.send(proof(first, *votes))
            evil.send(RetryProof(second.ctx, votes))
            evil.send(proof(second, new, *votes[1:]))
            await again(evil)
            assert not same(evil, second)
            third = await evil.attempt(1, attempt=3)
            await third.run_honestly()
            assert evil.charges() == 2
            await evil.goes_on(2)

    run(scenario())


def test_an_update_is_never_in_two_live_attempts(tmp_path):
    """A proof while the attempt lives, then a roster: the first is dead before the next begins."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            first = await evil.attempt()
            await first.deal()
            await first.upload()
            votes = [abort_of_peer(first, index) for index in first.others[:3]]
            evil.send(proof(first, *votes))
            with pytest.raises(KeyError):
                evil.update()
            evil.update = lambda: first.x[first.victim]
            evil.send((await evil.attempt(1, attempt=2)).roster)
            del evil.update
            assert (await evil.expect(AbortSignature)).ctx == first.ctx
            await evil.refused(Reason.REPLAY, "not used up")
            evil.send(proof(first, *votes))
            await again(evil)
            assert same(evil, first)
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


@pytest.mark.parametrize("reboot", [False, True])
def test_a_held_update_lives_through_a_crash_and_dies_with_the_boot_key(tmp_path, reboot):
    async def scenario():
        async with hostile(tmp_path) as evil:
            first, own = await sent_in_vain(evil)
            votes = (own, *(abort_of_peer(first, index) for index in first.others[:2]))
            await (evil.site.stop() if reboot else evil.site.crash())
            if reboot:
                for path in (evil.site.folder / "boot").iterdir():
                    path.unlink()
            evil.site.start()
            await evil.greet()
            evil.send(proof(first, *votes))
            await again(evil)
            assert same(evil, first) is not reboot
            second = await evil.attempt(1, attempt=2)
            await second.run_honestly()
            assert evil.charges() == 1 + reboot
            await evil.goes_on(2)

    run(scenario())


@pytest.mark.parametrize("early", [False, True])
def test_a_crash_between_the_steps_of_a_retry_charges_nothing_and_frees_nothing(tmp_path, early):
    """Dealt under the proof, killed, asked for the vector: refused, and the proof still holds.

    Also where the proof comes ``early``, before the vector is asked for: the update lies ready
    then, and the interrupted retry knows of no permit all the same.
    """

    async def scenario():
        async with hostile(tmp_path) as evil:
            first, own = await sent_in_vain(evil)
            votes = (own, *(abort_of_peer(first, index) for index in first.others[:2]))
            evil.send(proof(first, *votes))
            await again(evil)
            second = await evil.attempt(1, attempt=2)
            await second.deal()
            await evil.site.crash()
            evil.site.start()
            await evil.greet()
            if early:
                evil.send(proof(first, *votes))
            evil.send(second.delivery(second.victim))
            await evil.refused(Reason.STOPPED, "nothing charged")
            assert len(evil.uploads) == 1
            if not early:
                evil.send(proof(first, *votes))
            await again(evil)
            assert same(evil, first)
            third = await evil.attempt(1, attempt=3)
            await third.run_honestly()
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


@pytest.mark.parametrize("fresh", [False, True])
def test_the_roster_of_a_dead_attempt_again_does_not_take_what_it_holds(tmp_path, fresh):
    """Refused, as ever, and what is erased of a refused roster is not the held update."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            first, own = await sent_in_vain(evil)
            votes = (own, *(abort_of_peer(first, index) for index in first.others[:2]))
            stock = evil.bundle()
            evil.send(first.with_bundle(first.victim, stock) if fresh else first.roster)
            await evil.refused(Reason.REPLAY)
            assert first.ctx not in evil.site.node._bench.joining
            evil.send(proof(first, *votes))
            await again(evil)
            assert same(evil, first)
            second = await evil.attempt(1, attempt=2)
            await second.run_honestly()
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_an_abort_under_another_roster_of_the_same_attempt_frees_nothing(tmp_path):
    """A peer was told of a cohort with another bundle: it can still sign a U3 of the victim's."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            first = await evil.attempt()
            strayed, friend, third, _ = first.others
            changed = first.bundle_of_friend(friend, r_commitment=b"r" * 32)
            first.peer_expects(strayed, first.with_bundle(friend, changed))
            await first.deal()
            await first.upload_of_victim([i for i in first.all if i != strayed])
            evil.send(AbortRequest(first.ctx, "once more, please"))
            abort = await evil.expect(AbortSignature)
            own = RetryVote(abort.sender, abort.signature)
            two = (own, abort_of_friend(first, friend))
            evil.send(proof(first, *two, abort_of_peer(first, strayed)))
            await evil.quiet()
            with pytest.raises(KeyError):
                evil.update()
            evil.send(proof(first, *two, abort_of_peer(first, third)))
            await again(evil)
            assert same(evil, first)
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())
