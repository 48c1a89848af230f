"""The residual: what is said leaves it, what is dropped stays, nothing counts twice."""

import numpy as np
import pytest

from privacy.residual import Residual

ONE = np.array([1.0, 2.0], np.float32)
SAID = np.array([1.0, 0.5])


def test_what_was_not_said_goes_into_the_next_update():
    residual = Residual(1.0)
    assert residual.add_to(ONE, 0) is ONE
    residual.note(0, ONE, SAID)
    residual.settle(0)
    np.testing.assert_array_equal(residual.add_to(ONE, 1), [1.0, 3.5])


def test_a_dropped_update_is_carried_whole():
    residual = Residual(0.5)
    residual.note(0, residual.add_to(ONE, 0), SAID)
    carried = residual.add_to(ONE, 1)
    np.testing.assert_array_equal(carried, [1.5, 3.0])
    residual.note(1, carried, np.zeros(2))
    np.testing.assert_array_equal(residual.add_to(np.zeros(2, np.float32), 3), [0.75, 1.5])


def test_training_anew_from_one_version_replaces_the_unsent_update():
    residual = Residual(1.0)
    residual.note(0, residual.add_to(ONE, 0), SAID)
    residual.settle(0)
    first = residual.add_to(ONE, 1)
    residual.note(1, first, SAID)
    np.testing.assert_array_equal(residual.add_to(ONE, 1), first)


@pytest.mark.parametrize("version", [0, 2])
def test_a_result_for_another_version_settles_nothing(version):
    residual = Residual(1.0)
    residual.note(1, residual.add_to(ONE, 1), SAID)
    residual.settle(version)
    np.testing.assert_array_equal(residual.add_to(np.zeros(2, np.float32), 3), ONE)


def test_a_diverged_update_does_not_poison_the_next():
    residual = Residual(1.0)
    residual.note(0, np.array([np.nan, 1.0], np.float32), SAID)
    residual.settle(0)
    assert residual.add_to(ONE, 1) is ONE
    assert "nan" not in repr(residual)
