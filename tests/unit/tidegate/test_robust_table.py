"""The [robust] table: what it means, and what is refused with which word."""

import pytest

from privacy.errors import UsageError
from tests.support.live_aggregator import job_toml
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import Combine, JobFile, Robust

MEDIAN = b'\n[robust]\ngroups = 3\ncombine = "median"\n'


def robust(text, target=25, **more):
    return JobFile.parse(job_toml(target=target, **more) + text)


def test_a_job_without_the_table_has_one_cohort():
    job = JobFile.parse(job_toml())
    assert job.robust is None
    assert privacy_terms(job).groups == 1


def test_the_median_and_the_trimmed_mean_read():
    job = robust(MEDIAN)
    assert job.robust == Robust(3, Combine.MEDIAN, 0)
    assert privacy_terms(job).groups == 3
    text = b'\n[robust]\ngroups = 5\ncombine = "trimmed-mean"\ntrim = 2\n'
    assert robust(text).robust == Robust(5, Combine.TRIMMED_MEAN, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'[robust]\ngroups = 2\ncombine = "median"', "groups = 2"),
        (b'[robust]\ngroups = 3\ncombine = "mean"', "must be one of median, trimmed-mean"),
        (b"[robust]\ngroups = 3", "combine is missing"),
        (b'[robust]\ncombine = "median"', "groups is missing"),
        (b'[robust]\ngroups = 3\ncombine = "median"\ntrim = 1', "trim = 1, but it must be absent"),
        (b'[robust]\ngroups = 5\ncombine = "trimmed-mean"', "trim is missing"),
        (b'[robust]\ngroups = 5\ncombine = "trimmed-mean"\ntrim = 3', "trim = 3"),
        (b'[robust]\ngroups = 5\ncombine = "trimmed-mean"\ntrim = 0', "trim = 0"),
        (b'[robust]\ngroups = 6\ncombine = "median"', "6 groups of at least 5 sites are 30"),
        (b'[robust]\ngroups = 3\ncombine = "median"\nsize = 5', "unknown key 'size'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(text, words):
    with pytest.raises(UsageError, match="robust") as error:
        robust(b"\n" + text + b"\n")
    assert words in str(error.value)


COUNTED = """
[job]
name = "counts"
dataset = "credit"
[[columns]]
name = "income"
low = 0.0
high = 1.0
[privacy]
mode = "none"
{work}
[round]
target_sites = 25
[robust]
groups = 3
combine = "median"
"""


EVALUATION = """max_records = 100
[task]
file = "task.py"
[evaluation]
[[metrics]]
name = "loss"
kind = "mean"
upper = 1.0
"""
TREES = """max_records = 100
[trees]
label = "late"
trees = 2
depth = 2
"""
LABEL = '[[columns]]\nname = "late"\ndtype = "int64"\nlevels = 2\n[[columns]]'


@pytest.mark.parametrize(
    "work",
    ["max_records = 100\n[statistics]\nbins = 8", EVALUATION, TREES],
    ids=["statistics", "evaluation", "trees"],
)
def test_sums_of_counts_take_no_median(work):
    raw = COUNTED.replace("[[columns]]", LABEL).format(work=work).encode()
    with pytest.raises(UsageError, match="a median of groups' counts is no count"):
        JobFile.parse(raw)
    JobFile.parse(raw[: raw.index(b"[robust]")])  # which is all that was wrong with it


FLOWER = """
[job]
name = "flower"
dataset = "credit"
rounds = 3
[flower]
model = "app:model"
{evaluation}
[privacy]
mode = "none"
clipping_norm = 1.0
[strategy]
name = "FedAvg"
[round]
target_sites = 15
[robust]
groups = 3
combine = "median"
"""


def test_a_flower_app_may_train_robustly_but_not_evaluate():
    assert JobFile.parse(FLOWER.format(evaluation="").encode()).robust is not None
    metrics = (
        'evaluate_every = 1\n[[evaluation_metrics]]\nname = "loss"\nkind = "mean"\nupper = 1.0'
    )
    with pytest.raises(UsageError, match="must be absent where a Flower app evaluates"):
        JobFile.parse(FLOWER.format(evaluation=metrics).encode())
