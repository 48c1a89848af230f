"""[round] time_box_s: where a site may train for a time, and why it may not elsewhere."""

from pathlib import Path

import pytest

from privacy.errors import UsageError
from tests.unit.tidegate.test_jobfile_work import (
    BATCHES,
    COLUMNS,
    COUNTED,
    HEAD,
    LOCAL,
    NONE,
    RECORD,
    ROUNDS,
    SITE,
    STEPS,
    STRATEGY,
    TREES,
)
from tidegate.jobfile import JobFile

BOXED = "[round]\ntarget_sites = 3\ndeadline_s = 30.0\ntime_box_s = 12.5\n"


def parse(*parts, rounds=ROUNDS, table=BOXED):
    return JobFile.parse("\n".join([HEAD, rounds, *parts, table]).encode())


def refusal(*parts, **more):
    with pytest.raises(UsageError) as caught:
        parse(*parts, **more)
    return str(caught.value)


@pytest.mark.parametrize("parts", [(NONE, BATCHES), (SITE, BATCHES), (LOCAL, STEPS)])
def test_modes_with_local_steps_may_have_a_time_box(parts):
    job = parse(*parts, STRATEGY)
    assert job.round.time_box_s == 12.5
    assert job.local.steps == 5, "the most that a site takes"


def test_without_it_sites_take_all_their_steps():
    assert parse(NONE, BATCHES, STRATEGY, table="[round]\ntarget_sites = 3\n").round.time_box_s is (
        None
    )


def test_one_step_at_a_published_version_cannot_be_boxed():
    text = refusal(RECORD, STRATEGY)
    assert "time_box_s = 12.5" in text
    assert "carry records past the accounting" in text


EVALUATION = """[task]
[evaluation]
[[metrics]]
name = "loss"
kind = "mean"
upper = 4.0
[privacy]
mode = "none"
max_records = 9
"""


@pytest.mark.parametrize(
    "parts",
    [(TREES, COLUMNS, COUNTED), ("[statistics]\n", COLUMNS, COUNTED), (EVALUATION,)],
)
def test_work_without_local_steps_has_none(parts):
    assert "takes no local steps" in refusal(*parts, rounds="")


def test_a_flower_app_trains_by_itself():
    text = refusal('[flower]\nmodel = "app.task:model"\n', NONE, STRATEGY)
    assert "nobody here counts its steps" in text
    assert "train_config" in text


@pytest.mark.parametrize("deadline_s", ["12.5", "1.0"])
def test_the_deadline_lies_beyond_the_box(deadline_s):
    table = BOXED.replace("30.0", deadline_s)
    assert "must be less than deadline_s" in refusal(NONE, BATCHES, STRATEGY, table=table)


@pytest.mark.parametrize("value", ["0.0", "-1.0", "inf", "nan", "true", '"10"', "700000.0"])
def test_a_box_is_a_positive_number_of_seconds(value):
    table = BOXED.replace("12.5", value)
    assert "time_box_s" in refusal(NONE, BATCHES, STRATEGY, table=table)


def test_the_sample_file_reads():
    sample = Path(__file__).parents[3] / "docs" / "samples" / "job-time-box.toml"
    job = JobFile.parse(sample.read_bytes())
    assert (job.round.time_box_s, job.local.steps, job.privacy.mode) == (20.0, 40, "record-local")
