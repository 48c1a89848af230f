"""Other sets to other sites: who dealt (U2), who survived (U3). n = 5, c = 1, T = t = 4.

The aggregator is hostile and holds the keys of one member; the victim is a real edge node.
"""

import pytest

from privacy.errors import Reason
from privacy.secagg.messages import AbortRequest, AbortSignature, SurvivorSignature, UnmaskShares
from tests.support.attacker_knowledge import Knowledge, opens_nothing
from tests.support.hostile_aggregator import hostile
from tests.support.hostile_wire import Uploaded
from tests.support.wire_runs import run

# --- U2 -------------------------------------------------------------------------------------------


def test_u2_equivocation_ends_in_noise(tmp_path):
    """The victim masks without one honest site, which masks with the victim."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            friend, left_out = attempt.others[0], attempt.others[1]
            kept = [index for index in attempt.all if index != left_out]
            await attempt.upload({attempt.victim: kept})
            message = attempt.survivor_set(attempt.all)
            for index in attempt.others:
                (attempt.votes[index],) = attempt.feed(index, message)
            for index in attempt.others:
                (attempt.answers[index],) = attempt.feed(index, attempt.quorum())
            evil.send(message)
            await evil.refused(Reason.EQUIVOCATION, "U2")
            assert opens_nothing(attempt, friend).self_seed(attempt.victim) is not None
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_u2_that_is_not_the_sites_own_is_refused_though_the_graph_is_complete(tmp_path):
    async def scenario():
        for number, wrong in enumerate((-1, +1), start=1):
            folder = tmp_path / str(number)
            folder.mkdir()
            async with hostile(folder) as evil:
                attempt = await evil.attempt()
                await attempt.deal()
                last = attempt.others[-1]
                some = tuple(index for index in attempt.all if index != last)
                own, told = (some, attempt.all) if wrong > 0 else (attempt.all, some)
                await attempt.upload_of_victim(own)
                evil.send(attempt.survivor_set(some, told))
                await evil.refused(Reason.EQUIVOCATION, "U2")
                assert not any(isinstance(said, SurvivorSignature) for said in evil.said)
                assert evil.charges() == 1
                await evil.goes_on(2)

    run(scenario())


def test_step_2_twice_with_another_u2_gives_no_second_vector(tmp_path):
    """Two U2 gave away a pairwise mask: y - y' = PRG(pair)."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload_of_victim()
            await evil.sent(attempt.ctx)
            evil.send(attempt.delivery(attempt.victim))
            again = await evil.expect(Uploaded)
            assert again == evil.uploads[0]
            fewer = [index for index in attempt.all if index != attempt.others[0]]
            evil.send(attempt.delivery(attempt.victim, fewer))
            await evil.refused(Reason.EQUIVOCATION)
            await evil.quiet()
            assert {upload.data for upload in evil.uploads} == {evil.uploads[0].data}
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_later_ciphertexts_are_discarded(tmp_path):
    """A fifth ciphertext after U2_i was fixed kills the attempt; it does not extend U2_i."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            last = attempt.others[-1]
            first = [index for index in attempt.all if index != last]
            await attempt.upload_of_victim(first)
            evil.send(attempt.delivery(attempt.victim))
            await evil.refused(Reason.EQUIVOCATION)
            assert (len(evil.uploads), evil.charges()) == (1, 1)
            await evil.goes_on(2)

    run(scenario())


# --- U3 -------------------------------------------------------------------------------------------


def test_u3_equivocation_reaches_no_quorum(tmp_path):
    """One camp is told that a site survived, the other not: both its secrets would go."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            friend, target, *rest = attempt.others
            without = [index for index in attempt.all if index != target]
            whole, cut = attempt.survivor_set(attempt.all), attempt.survivor_set(without)
            evil.send(whole)
            votes_whole = [await evil.expect(SurvivorSignature), *attempt.feed(target, whole)]
            votes_cut = [vote for index in rest for vote in attempt.feed(index, cut)]
            own = attempt.forge_vote(friend, whole), attempt.forge_vote(friend, cut)
            evil.send(attempt.quorum([*votes_whole, own[0]]))
            await evil.refused(Reason.BELOW_THRESHOLD)
            for index in rest:
                site = attempt.peers[index]
                assert attempt.feed(index, attempt.quorum([*votes_cut, own[1]])) == []
                assert site.aborted.reason is Reason.BELOW_THRESHOLD
            assert attempt.feed(target, attempt.quorum([*votes_whole, *votes_cut, own[0]])) == []
            opens_nothing(attempt, friend)
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_two_u3_are_never_both_signed(tmp_path):
    """Signing two U3 gave the sum of two honest sites."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            whole = attempt.survivor_set(attempt.all)
            evil.send(whole)
            first = await evil.expect(SurvivorSignature)
            evil.send(whole)
            assert await evil.expect(SurvivorSignature) == first
            cut = [index for index in attempt.all if index != attempt.others[0]]
            evil.send(attempt.survivor_set(cut))
            await evil.refused(Reason.EQUIVOCATION)
            await evil.quiet()
            assert {v for v in evil.said if isinstance(v, SurvivorSignature)} == {first}
            assert not any(isinstance(said, AbortSignature) for said in evil.said)
            opens_nothing(attempt, attempt.others[0])
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


BAD_SETS = {
    "below T and N_min": (lambda a: a.all[:3] if a.victim <= 3 else a.all[-3:], "below-threshold"),
    "without the site": (lambda a: [i for i in a.all if i != a.victim], "policy"),
    "no subset of U2": (lambda a: [*a.all, 6], "malformed"),
}


@pytest.mark.parametrize("case", BAD_SETS)
def test_a_bad_u3_is_never_signed(tmp_path, case):
    choose, reason = BAD_SETS[case]

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            evil.send(attempt.survivor_set(choose(attempt)))
            await evil.refused(reason)
            await evil.expect(AbortSignature)
            assert not any(isinstance(said, SurvivorSignature) for said in evil.said)
            opens_nothing(attempt, attempt.others[0])
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


@pytest.mark.parametrize("crash", [False, True])
def test_slot_3_holds_a_u3_or_an_abort_never_both(tmp_path, crash):
    async def again(evil):
        if crash:
            await evil.site.crash()
            evil.site.start()
        else:
            evil.hang_up()
        await evil.greet()

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            evil.send(attempt.survivor_set(attempt.all))
            vote = await evil.expect(SurvivorSignature)
            await again(evil)
            evil.send(AbortRequest(attempt.ctx, "change your mind"))
            await evil.quiet()
            slot_3 = {s for s in evil.said if isinstance(s, SurvivorSignature | AbortSignature)}
            assert slot_3 == {vote}

            await evil.train(2)
            second = await evil.attempt(2)
            await second.deal()
            await second.upload()
            evil.send(AbortRequest(second.ctx, "give it up"))
            abort = await evil.expect(AbortSignature)
            await again(evil)
            evil.send(second.survivor_set(second.all))
            evil.send(AbortRequest(second.ctx, "once more"))
            await evil.quiet()
            slot_3 = {s for s in evil.said if isinstance(s, SurvivorSignature | AbortSignature)}
            assert slot_3 == {vote, abort}
            assert evil.charges() == 2
            await evil.goes_on(3)

    run(scenario())


@pytest.mark.parametrize("dropped", [False, True])
def test_both_shares_of_one_peer_are_never_given(tmp_path, dropped):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            friend, target = attempt.others[:2]
            without = tuple(index for index in attempt.all if index != target)
            first, second = (without, attempt.all) if dropped else (attempt.all, without)
            await attempt.vote(first)
            await attempt.unmask()
            # Now the other story, signed by a friend and by nobody else who is honest.
            other = attempt.survivor_set(second)
            forged = attempt.forge_vote(friend, other)
            evil.send(other)
            evil.send(attempt.quorum([forged]))
            evil.send(attempt.quorum())
            await evil.quiet()
            answers = [said for said in evil.said if isinstance(said, UnmaskShares)]
            kinds = {"b": set(), "m": set()}
            for answer in answers:
                kinds["b"] |= {share.owner for share in answer.self_shares}
                kinds["m"] |= {share.owner for share in answer.mask_shares}
            assert (target in kinds["b"], target in kinds["m"]) == (not dropped, dropped)
            assert not kinds["b"] & kinds["m"]
            honest = frozenset(first) - {friend}
            assert Knowledge(attempt, [friend]).opened() == {honest}
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())
