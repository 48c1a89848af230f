"""Other words to other sites: models, plans, rosters, manifests. n = 5, c = 1, T = t = 4.

The aggregator is hostile and holds the keys of one member; the victim is a real edge node.
"""

from dataclasses import replace

import numpy as np
import pytest

from privacy.errors import Reason
from privacy.secagg.messages import AbortSignature, UnmaskShares
from tests.support.attacker_knowledge import opens_nothing
from tests.support.hostile_aggregator import hostile
from tests.support.hostile_consortium import identities, make_manifest
from tests.support.live_aggregator import SPEC
from tests.support.version_market import whole
from tests.support.wire_runs import run
from tidegate import messages as m
from tidegate.manifest import seal
from tidegate.version_chain import chain_start

# --- models, plans, rosters -----------------------------------------------------------------------


def test_model_equivocation_ends_in_noise(tmp_path):
    """Pasquini et al.: another model for the victim, so that its update stands out of the sum."""

    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            await evil.offer()
            trap_D = np.full(SPEC.length, 7, np.float32)
            assert isinstance(await evil.train(model_D=trap_D), m.Ready)
            attempt = await evil.attempt()
            usual = whole({}, 0, np.zeros(SPEC.length, np.float32))
            head = usual.head_after(chain_start(evil.job_id))
            told = replace(attempt.roster, plan=replace(attempt.roster.plan, chain_head=head))
            for index in attempt.others:
                attempt.peer_expects(index, told, chain_head=head)
            await attempt.deal()
            await attempt.upload()
            assert evil.charges() == 1
            await attempt.vote()
            # The others make a quorum by themselves and release shares of the victim's b as well.
            votes = [attempt.votes[index] for index in attempt.others]
            for index in attempt.others:
                (attempt.answers[index],) = attempt.feed(index, attempt.quorum(votes))
            evil.send(attempt.quorum(votes))
            await evil.refused(Reason.BAD_SIGNATURE)
            friend = attempt.others[0]
            assert opens_nothing(attempt, friend).self_seed(attempt.victim) is not None
            assert not any(isinstance(said, UnmaskShares) for said in evil.said)
            await evil.goes_on(2)

    run(scenario())


def test_two_models_for_one_version_are_refused_by_the_site_itself(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            evil.send(evil.train_request(2, 0, np.ones(SPEC.length, np.float32)))
            refusal = await evil.expect(m.NotReady)
            assert refusal.reason == Reason.EQUIVOCATION
            stray = replace(evil.train_request(2, 1), chain_head=bytes(32))
            evil.send(stray)
            refusal = await evil.expect(m.NotReady)
            assert (refusal.reason, evil.charges()) == (Reason.EQUIVOCATION, 0)
            await evil.goes_on(2)

    run(scenario())


PLANS = {
    "encoding": lambda plan: replace(
        plan, encoding=plan.encoding.replace(b'"n_max":', b'"n_max":1')
    ),
    "ring_bits": lambda plan: replace(plan, ring_bits=plan.ring_bits + 1),
    "length": lambda plan: replace(plan, length=plan.length - 1),
    "chain_head": lambda plan: replace(plan, chain_head=bytes(32)),
    "colluders": lambda plan: replace(plan, colluders=2),
    "min_survivors": lambda plan: replace(plan, min_survivors=3),
    "bases": lambda plan: replace(
        plan, bases=tuple(replace(base, version=1) for base in plan.bases)
    ),
}


@pytest.mark.parametrize("field", PLANS)
def test_plan_equivocation_is_refused_before_any_key_is_used(tmp_path, field):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            evil.send(replace(attempt.roster, plan=PLANS[field](attempt.roster.plan)))
            await evil.refused(Reason.POLICY)
            assert evil.charges() == 0
            await evil.goes_on(2)

    run(scenario())


def test_roster_equivocation_is_caught_in_step_2_uncharged(tmp_path):
    """The others are told of another bundle of the friend: their shares are for another rh."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            decoy = await evil.attempt(members=[name for name in evil.names if name != "bank-1"])
            friend = attempt.others[0]
            bundles = list(attempt.roster.bundles)
            bundles[friend - 1] = next(
                b for b in decoy.roster.bundles if b.bundle.site == attempt.members[friend - 1]
            )
            told = replace(attempt.roster, bundles=tuple(bundles))
            for index in attempt.others[1:]:
                attempt.peer_expects(index, told)
            await attempt.deal()
            evil.send(attempt.delivery(attempt.victim))
            await evil.refused(Reason.BAD_SIGNATURE)
            signature = await evil.expect(AbortSignature)
            assert signature.accused == attempt.members[attempt.others[1] - 1]
            assert (evil.charges(), evil.uploads) == (0, [])
            await evil.goes_on(2)

    run(scenario())


def test_another_manifest_than_the_pinned_one_closes_the_session(tmp_path):
    """Sybils by the sealed list itself: even the operator's own signature does not replace it."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            names = [*evil.names, "bank-6", "bank-7"]
            swapped = seal(make_manifest(names, 1, 4), identities().operator.sign)
            evil.send(m.Welcome(m.PROTOCOL, *swapped))
            await evil.greet(swapped, stock=0)
            raw, signature = evil.sealed
            await evil.greet((raw, signature[:-1] + bytes([signature[-1] ^ 1])), stock=0)
            await evil.greet()
            assert evil.charges() == 0
            await evil.goes_on(2)

    run(scenario())
