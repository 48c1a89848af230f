"""The pure parts of the benchmark of kinds of rounds: jobs, split, what is read off a run."""

import numpy as np
import pytest

from benchmarks import asynchrony
from benchmarks.asynchrony import PAUSES_MS, SYNCHRONOUS, TIME_BOXED, Run
from tidegate.jobfile import JobFile


def test_every_option_has_a_default_and_quick_is_short():
    options = asynchrony.parse([])
    assert options.json is None
    assert asynchrony.parse(["--quick"]).seconds < options.seconds


@pytest.mark.parametrize("arguments", [["--seconds", "1"], ["--target", "1"], ["--target", "0"]])
def test_runs_that_measure_nothing_are_refused(arguments):
    with pytest.raises(SystemExit):
        asynchrony.parse(arguments)


def test_both_jobs_differ_in_their_rounds_alone():
    boxed = JobFile.parse(asynchrony.job_toml(TIME_BOXED, 60.0))
    fixed = JobFile.parse(asynchrony.job_toml(SYNCHRONOUS, 60.0))
    assert (boxed.round.time_box_s, fixed.round.time_box_s) == (asynchrony.BOX_S, None)
    assert boxed.privacy == fixed.privacy
    assert boxed.local.learning_rate == fixed.local.learning_rate
    assert fixed.local.steps == asynchrony.SYNCHRONOUS_STEPS
    # The fastest site is not held back by the cap.
    assert boxed.local.steps * PAUSES_MS[0] / 1000 > 0.9 * asynchrony.BOX_S
    assert max(PAUSES_MS) / min(PAUSES_MS) == 10


def test_every_record_is_at_one_site_or_held_out():
    tables, test = asynchrony.split_digits(0)
    held = {row.tobytes() for row in test["pixels"]}
    assert sum(len(table["digit"]) for table in tables) + len(test["digit"]) == 1797
    assert all(len(table["digit"]) for table in tables)
    assert not held & {row.tobytes() for table in tables for row in table["pixels"]}
    again, _ = asynchrony.split_digits(0)
    np.testing.assert_array_equal(tables[2]["pixels"], again[2]["pixels"])


def test_the_target_is_reached_when_it_first_is():
    run = Run(SYNCHRONOUS, [(1.0, 0.5), (2.0, 0.91), (3.0, 0.9)])
    assert run.seconds_to(0.9) == 2.0
    assert run.seconds_to(0.95) is None
    assert run.final == pytest.approx(0.77)
