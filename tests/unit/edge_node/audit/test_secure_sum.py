"""The audit's secure sum is exact, with and without drop-outs, and fails closed."""

import numpy as np
import pytest

from edge_node.audit.secure_sum import SecureCohort
from edge_node.audit.subject import without
from privacy.errors import UsageError
from privacy.noise import NoisedUpdate
from privacy.ring import centre
from privacy.terms import CohortRules
from tests.support.encoding_plans import make_plan

RULES = CohortRules(colluders=1, min_survivors=4, members=5)
PLAN = make_plan(gradient=97)


def updates(sites):
    source = np.random.default_rng(3)
    return {k: NoisedUpdate(source.integers(-999, 999, PLAN.length)) for k in sites}


@pytest.mark.parametrize("sites", [(0, 1, 2, 3, 4), (0, 1, 2, 3), (1, 2, 3, 4)])
def test_the_sum_of_the_survivors_is_exact(sites):
    cohort = SecureCohort(RULES)
    for _ in range(2):  # each attempt has keys of its own
        given = updates(sites)
        opened = cohort.sum(PLAN, given)
        assert opened.survivors == sites
        expected = sum(update.vector_D for update in given.values())
        assert np.array_equal(centre(opened.total_d, PLAN.bits), expected)


def test_known_updates_can_be_taken_out_again():
    given = updates((0, 1, 2, 3))
    opened = SecureCohort(RULES).sum(PLAN, given)
    rest_d = without(opened, {3: given[3]}, PLAN)
    expected = sum(given[k].vector_D for k in (0, 1, 2))
    assert np.array_equal(centre(rest_d, PLAN.bits), expected)


def test_too_few_updates_open_nothing():
    with pytest.raises(UsageError, match="did not open"):
        SecureCohort(RULES).sum(PLAN, updates((0, 1, 2)))
