"""Every pattern of drop-outs for n <= 6, over all steps: the exact sum, or nothing at all.

A pattern gives each site the last step whose message it still sends. Patterns that differ only in
what would happen after the attempt has aborted are the same run, so one of each is enough.
"""

from copy import copy
from functools import lru_cache
from itertools import combinations

import pytest

from privacy.secagg.commands import Step
from privacy.secagg.keys import MLKEM768_X25519, P256, X25519, Suite
from privacy.secagg.server import Phase
from tests.support.secagg_harness import Federation

STEPS = (0, 1, 2, 3)


def remember(part, *functions):
    """Give a copy of a suite's part that computes each thing once."""
    copied = copy(part)
    for function in functions:
        setattr(copied, function, lru_cache(maxsize=None)(getattr(part, function)))
    return copied


def remembering(suite):
    """A suite that computes each thing once: its functions are pure, and patterns repeat them."""
    return Suite(
        suite.name,
        remember(suite.masks, "private_key", "public_key", "agree", "key_identity"),
        remember(suite.transport, "public_key", "key_identities", "box"),
        remember(suite.signatures, "verify"),
    )


def patterns(n: int, least: int):
    """Yield (drop pattern, step at which it aborts or None), one for each distinct run."""

    def extend(step, gone):
        if n - len(gone) < least or step > STEPS[-1]:
            yield dict(gone), (step if n - len(gone) < least else None)
            return
        left = [i for i in range(1, n + 1) if i not in gone]
        for size in range(len(left) + 1):
            for chosen in combinations(left, size):
                yield from extend(step + 1, {**gone, **dict.fromkeys(chosen, step)})

    yield from extend(0, {})


@pytest.mark.parametrize(
    ("n", "min_survivors", "suite"),
    [
        (3, 3, P256),
        (4, 3, P256),
        (4, 3, X25519),
        (4, 3, MLKEM768_X25519),
        (5, 4, P256),
        (6, 5, P256),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_drop_pattern(n, min_survivors, suite):
    suite = remembering(suite)
    for number, (gone, aborts) in enumerate(patterns(n, min_survivors)):
        federation = Federation(n, 1, min_survivors, suite=suite, length=5)
        outcome = federation.run(gone, silent=number % 3 == 0)
        where = f"pattern {gone}, silent {number % 3 == 0}"
        assert not outcome.blamed, where
        if aborts is not None:
            assert outcome.server.phase is Phase.ABORTED, where
            assert outcome.total_D is None, where
            assert outcome.terms == (), where
            continue
        assert outcome.abort is None, where
        dealt_in_time = {i for i in range(1, n + 1) if gone.get(i, 9) >= 2}
        assert {federation.members.index(s) + 1 for s in outcome.survivors} == dealt_in_time
        expected = federation.expected_D(outcome.survivors)
        assert outcome.total_D.tolist() == expected.tolist(), where
        for i, site in enumerate(federation.sites, start=1):
            assert site.charges == (Step.MASKED_UPDATE in site.slots), where
            if gone.get(i, 9) >= 4:
                assert site.erased, where
                assert site.aborted is None, where


def test_the_patterns_are_all_there():
    # n = 5 with at most one loss in all: none, or one of 5 sites at one of 4 steps.
    assert sum(aborts is None for _, aborts in patterns(5, 4)) == 1 + 5 * 4
    assert len(list(patterns(5, 4))) == len({str(p) for p in patterns(5, 4)})


def test_two_losses_seen_before_step_2_charge_nobody():
    federation = Federation(5)
    federation.run({1: 0, 2: 1})
    assert [site.charges for site in federation.sites] == [0] * 5
