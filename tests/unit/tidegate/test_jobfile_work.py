"""Each kind of work reads whole, and no work gets a mode in which nobody could vouch for it."""

import pytest

from privacy.errors import UsageError
from tidegate.jobfile import (
    Evaluation,
    FlowerApp,
    JobFile,
    LocalPrivacy,
    PrivacyUnit,
    RecordPrivacy,
    SitePrivacy,
    Statistics,
    Task,
    Trees,
)

HEAD = '[job]\nname = "j"\ndataset = "d"\n'
ROUNDS = "rounds = 10\n"
TAIL = "[round]\ntarget_sites = 3\n"
STRATEGY = '[strategy]\nname = "FedAvg"\n'
COLUMNS = """
[[columns]]
name = "age"
low = 0.0
high = 120.0
[[columns]]
name = "region"
dtype = "int64"
levels = 4
[[columns]]
name = "label"
low = 0.0
high = 1.0
"""
TARGET = "epsilon = 3.0\ndelta_dp = 1e-5\n"
RECORD = f"""[privacy]
mode = "record-distributed"
{TARGET}sampling_rate = 0.01
clipping_norm = 1.0
expected_batch_size = 100
"""
LOCAL = f"""[privacy]
mode = "record-local"
{TARGET}sampling_rate = 0.01
clipping_norm = 1.0
expected_batch_size = 100
update_norm = 5.0
"""
SITE = f'[privacy]\nmode = "site"\n{TARGET}clipping_norm = 1.0\n'
NONE = '[privacy]\nmode = "none"\nclipping_norm = 1.0\n'
COUNTED = f'[privacy]\nmode = "record-distributed"\n{TARGET}'
STEPS = "[local]\nsteps = 5\nlearning_rate = 0.1\n"
BATCHES = "[local]\nsteps = 5\nbatch_size = 8\nlearning_rate = 0.1\n"
TREES = '[trees]\nlabel = "label"\ntrees = 20\ndepth = 3\n'


def parse(*parts, rounds=ROUNDS):
    return JobFile.parse("\n".join([HEAD, rounds, *parts, TAIL]).encode())


def refusal(*parts, rounds=ROUNDS):
    with pytest.raises(UsageError) as caught:
        parse(*parts, rounds=rounds)
    return str(caught.value)


def test_a_task_has_each_mode_with_the_local_steps_it_allows():
    assert isinstance(parse(RECORD, STRATEGY).privacy, RecordPrivacy)
    local = parse(LOCAL, STEPS, STRATEGY)
    assert isinstance(local.privacy, LocalPrivacy)
    assert (local.local.steps, local.local.batch_size) == (5, 0)
    site = parse(SITE, BATCHES, STRATEGY)
    assert isinstance(site.privacy, SitePrivacy)
    assert site.privacy.unit.kind == "site"
    assert parse(NONE, BATCHES, STRATEGY).privacy.unit.kind == "none"
    assert all(isinstance(job.work, Task) for job in (local, site))


def test_the_number_of_rounds_follows_from_epochs():
    # 2 epochs at q = 0.01 are 200 steps, in rounds of 5.
    job = parse(LOCAL + "epochs = 2.0\n", STEPS, STRATEGY, rounds="")
    assert job.rounds == 40
    # A rest of a round is a round: 0.33 epochs are 33 steps.
    assert parse(LOCAL + "epochs = 0.33\n", STEPS, STRATEGY, rounds="").rounds == 7
    assert "epochs gives it" in refusal(LOCAL + "epochs = 2.0\n", STEPS, STRATEGY)
    assert "rounds is missing" in refusal(LOCAL, STEPS, STRATEGY, rounds="")


def test_the_unit_of_a_user_needs_a_column_and_a_cap():
    users = 'unit = "user"\nuser_column = "account"\nmax_rows_per_user = 8\n'
    for table in (RECORD, LOCAL):
        more = STEPS if table is not RECORD else ""
        assert parse(table + users, more, STRATEGY).privacy.unit == PrivacyUnit(
            "user", "account", 8
        )
    assert "user_column is missing" in refusal(RECORD + 'unit = "user"\n', STRATEGY)
    assert "must be absent unless" in refusal(RECORD + "max_rows_per_user = 8\n", STRATEGY)


@pytest.mark.parametrize("table", [SITE, NONE])
def test_a_flower_app_runs_where_its_whole_difference_is_clipped(table):
    job = parse("[flower]\n", table, STRATEGY)
    assert isinstance(job.work, FlowerApp)
    assert job.local is None


def test_a_flower_app_cannot_be_trusted_with_the_clip_of_a_record():
    why = refusal("[flower]\n", RECORD, STRATEGY)
    assert "mode = 'site' or 'none'" in why
    assert "[task]" in why
    assert "the app itself adds the noise" in refusal("[flower]\n", LOCAL, STRATEGY)
    declared = LOCAL + "noise_multiplier = 1.1\n"
    assert isinstance(
        parse("[flower]\n", declared, "[local]\nsteps = 5\n", STRATEGY).work, FlowerApp
    )


def test_trees_know_their_rounds_and_their_norm():
    job = parse(TREES, COLUMNS, COUNTED, rounds="")
    assert isinstance(job.work, Trees)
    assert (job.work.label, job.work.trees, job.work.depth) == ("label", 20, 3)
    assert job.rounds >= 60
    assert job.strategy is None
    assert "must be absent" in refusal(TREES, COLUMNS, COUNTED + "clipping_norm = 1.0\n", rounds="")
    assert "must be absent" in refusal(TREES, COLUMNS, COUNTED, STRATEGY, rounds="")
    assert "[[columns]]" in refusal(TREES, COUNTED, rounds="")
    unbounded = COLUMNS.replace("low = 0.0\nhigh = 120.0\n", "")
    assert "'age'" in refusal(TREES, unbounded, COUNTED, rounds="")


def test_statistics_are_one_sum_over_bounded_columns():
    job = parse("[statistics]\n", COLUMNS, COUNTED, rounds="")
    assert isinstance(job.work, Statistics)
    assert (job.rounds, job.privacy.sampling_rate) == (1, 1.0)
    assert "one sum" in refusal("[statistics]\n", COLUMNS, COUNTED)
    assert "[[columns]]" in refusal("[statistics]\n", COUNTED, rounds="")
    assert "[[metrics]]" not in refusal("[statistics]\n", COLUMNS, SITE, rounds="")


def test_an_evaluation_names_metrics_and_nothing_it_knows_itself():
    metrics = '[[metrics]]\nname = "loss"\nkind = "mean"\nupper = 4.0\n'
    job = parse("[task]\n[evaluation]\nversion = 3\n", metrics, COUNTED, rounds="")
    assert isinstance(job.work, Evaluation)
    assert (job.task.file, job.work.version, job.rounds) == ("task.py", 3, 1)
    assert "metrics is missing" in refusal("[evaluation]\n", COUNTED, rounds="")
    wrong = COUNTED + "metrics_norm = 1.0\n"
    assert "metrics_norm" in refusal("[evaluation]\n", metrics, wrong, rounds="")


def test_a_job_does_one_thing():
    why = refusal("[flower]\n[task]\n", NONE, STRATEGY)
    assert "[flower]" in why
    assert "[task]" in why
    assert "does one thing" in refusal("[statistics]\n", TREES, COLUMNS, COUNTED, rounds="")


@pytest.mark.parametrize("table", [SITE, LOCAL])
@pytest.mark.parametrize("work", ["[statistics]\n", TREES])
def test_sums_over_records_have_no_other_mode(work, table):
    assert "no meaning for sums over records" in refusal(work, COLUMNS, table, rounds="")


def test_evaluation_metrics_are_a_flower_apps():
    metrics = '[[evaluation_metrics]]\nname = "loss"\nkind = "mean"\nupper = 4.0\n'
    assert "[flower] only" in refusal(metrics, RECORD, STRATEGY)
    assert "evaluation_metrics is missing" in refusal(
        "[flower]\nevaluate_every = 1\n", NONE, STRATEGY
    )
    job = parse("[flower]\nevaluate_every = 5\n", metrics, NONE, STRATEGY)
    assert job.evaluation_metrics.length == 1


def test_keys_of_another_mode_are_refused_by_name():
    assert "sampling_rate" in refusal(NONE + "sampling_rate = 0.1\n", BATCHES, STRATEGY)
    assert "update_norm" in refusal(RECORD + "update_norm = 1.0\n", STRATEGY)
    assert "epochs" in refusal(RECORD + "epochs = 1.0\n", STRATEGY)
    assert "batch_size" in refusal(LOCAL, BATCHES, STRATEGY)
