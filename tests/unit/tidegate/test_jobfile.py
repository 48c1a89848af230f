import pytest

from privacy.compress import MapKind
from privacy.errors import PeerError, Reason, UsageError
from privacy.metrics import BinnedAuc, MeanMetric
from privacy.quantise import Rounding
from tidegate.jobfile import JobFile, NoPrivacy, RecordPrivacy

RECORD = b"""
[job]
name = "credit default"
dataset = "credit"
rounds = 600

[task]
file = "task.py"
seed = 7
physical_batch = 128

[privacy]
mode = "record-distributed"
epsilon = 3.0
delta_dp = 1e-5
unit = "record"
sampling_rate = 0.01
clipping_norm = 0.5
metrics_norm = 0.1
expected_batch_size = 900

[[metrics]]
name = "loss"
kind = "mean"
upper = 4.0

[[metrics]]
name = "auc"
kind = "binned-auc"
bins = 20

[compression]
map = "rotation+random-k"
keep = 0.5
range = 0.2

[strategy]
name = "FedAdam"
options = { eta = 0.01, beta_1 = 0.9 }

[round]
target_sites = 5
deadline_s = 10
max_attempts = 3
"""

NONE = b"""
[job]
name = "plain"
dataset = "digits"
rounds = 3
[privacy]
mode = "none"
clipping_norm = 10
[local]
steps = 20
batch_size = 32
learning_rate = 0.1
[strategy]
name = "FedAvg"
[round]
target_sites = 3
"""


def swap(raw, old, new):
    assert raw.count(old) == 1, old
    return raw.replace(old, new)


def test_a_record_distributed_job_reads_whole():
    job = JobFile.parse(RECORD)
    assert (job.name, job.dataset, job.rounds) == ("credit default", "credit", 600)
    assert (job.task.file, job.task.seed, job.task.physical_batch) == ("task.py", 7, 128)
    assert job.privacy == RecordPrivacy(
        epsilon=3.0,
        delta_dp=1e-5,
        sampling_rate=0.01,
        clipping_norm=0.5,
        metrics_norm=0.1,
        expected_batch_size=900,
        max_records=1_000_000,
        rounding=Rounding.RECORD,
        noise_multiplier=None,
    )
    assert job.local is None
    assert job.metrics.metrics == (MeanMetric("loss", 4.0), BinnedAuc("auc", 20))
    assert job.metrics_length == 41
    assert (job.compression.map, job.compression.keep) == (MapKind.ROTATION_RANDOM_K, 0.5)
    assert (job.strategy.name, job.strategy.options) == ("FedAdam", {"eta": 0.01, "beta_1": 0.9})
    assert (job.round.target_sites, job.round.deadline_s, job.round.max_attempts) == (5, 10.0, 3)


def test_a_job_without_privacy_reads_whole():
    job = JobFile.parse(NONE)
    assert job.privacy == NoPrivacy(10.0, 0.0)
    assert job.local is not None
    assert job.local.steps == 20
    assert job.metrics_length == 0
    assert job.compression.map is MapKind.IDENTITY


@pytest.mark.parametrize(
    ("raw", "typo", "says"),
    [
        (RECORD, (b"epsilon =", b"epsilom ="), r"\[privacy\] unknown key 'epsilom'.*'epsilon'"),
        (RECORD, (b"[compression]", b"[compresion]"), "'compresion'.*'compression'"),
        (RECORD, (b"bins = 20", b"bin = 20"), r"\[\[metrics\]\] number 2 .*'bin'.*'bins'"),
        (RECORD, (b"beta_1", b"beta1"), r"\[options\].*'beta1'.*'beta_1'"),
        (RECORD, (b'"FedAdam"', b'"FedAdamm"'), "FedYogi; did you mean 'FedAdam'"),
        (RECORD, (b'"binned-auc"', b'"auc"'), "kind = 'auc'"),
        (NONE, (b"learning_rate", b"lr"), r"\[local\].*'lr'; known: steps"),
    ],
)
def test_a_typo_names_the_key_and_the_closest_valid_one(raw, typo, says):
    with pytest.raises(UsageError, match=says):
        JobFile.parse(swap(raw, *typo))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (b"epsilon = 3.0", b"epsilon = 0", "epsilon"),
        (b"epsilon = 3.0", b"epsilon = nan", "epsilon"),
        (b"epsilon = 3.0", b"epsilon = inf", "epsilon"),
        (b"epsilon = 3.0", b"epsilon = true", "epsilon"),
        (b"epsilon = 3.0", b"epsilon = '3'", "epsilon"),
        (b"epsilon = 3.0", b"", "epsilon is missing"),
        (b"delta_dp = 1e-5", b"delta_dp = 1e-3", "delta_dp"),
        (b"delta_dp = 1e-5", b"delta_dp = 0.0", "delta_dp"),
        (b"delta_dp = 1e-5", b"", "delta_dp is missing"),
        (b"sampling_rate = 0.01", b"sampling_rate = 0", "sampling_rate"),
        (b"sampling_rate = 0.01", b"sampling_rate = 1.01", "sampling_rate"),
        (b"clipping_norm = 0.5", b"clipping_norm = 0", "clipping_norm"),
        (b"clipping_norm = 0.5", b"clipping_norm = -1", "clipping_norm"),
        (b"metrics_norm = 0.1", b"metrics_norm = 0", "metrics_norm"),
        (b"metrics_norm = 0.1", b"", "metrics_norm"),
        (b"metrics_norm = 0.1", b"metrics_norm = -0.1", "metrics_norm"),
        (b"expected_batch_size = 900", b"expected_batch_size = 9.5", "expected_batch_size"),
        (b"expected_batch_size = 900", b"expected_batch_size = 0", "expected_batch_size"),
        (b'unit = "record"', b'unit = "household"', "unit"),
        (b'unit = "record"', b'rounding = "plain"', "rounding"),
        (b'unit = "record"', b"noise_multiplier = 0", "noise_multiplier"),
        (b'unit = "record"', b"max_records = 0", "max_records"),
        (b"rounds = 600", b"rounds = 0", "rounds"),
        (b"rounds = 600", b"rounds = 1.5", "rounds"),
        (b"rounds = 600", b"rounds = true", "rounds"),
        (b'"task.py"', b'"../task.py"', "file"),
        (b'"task.py"', b'"/etc/task.py"', "file"),
        (b'"task.py"', b'"task.sh"', "file"),
        (b'"credit"', b'"../credit"', "dataset"),
        (b'"credit default"', b'"credit\\u001b[2J"', "name"),
        (b"upper = 4.0", b"upper = 0", "upper"),
        (b"upper = 4.0", b"upper = 4.0\nbins = 3", "bins"),
        (b"bins = 20", b"bins = 1", "bins"),
        (b'name = "auc"', b'name = "loss"', "name"),
        (b"keep = 0.5", b"keep = 0", "keep"),
        (b'"rotation+random-k"', b'"rotation"', "keep"),
        (b'"rotation+random-k"', b'"top-k"', "map"),
        (b"eta = 0.01", b"eta = 0", "eta"),
        (b"beta_1 = 0.9", b"beta_1 = 1.0", "beta_1"),
        (b"target_sites = 5", b"target_sites = 1", "target_sites"),
        (b"target_sites = 5", b"", "target_sites is missing"),
        (b"deadline_s = 10", b"deadline_s = 0", "deadline_s"),
        (b"max_attempts = 3", b"max_attempts = 0", "max_attempts"),
    ],
)
def test_values_out_of_range_are_refused_by_key(old, new, key):
    with pytest.raises(UsageError, match=key) as caught:
        JobFile.parse(swap(RECORD, old, new))
    assert str(caught.value).startswith("job.toml:")


def test_local_steps_are_refused_in_record_mode():
    # Several local steps carry records past the accounting (privacy.md, D-REC step 2).
    with pytest.raises(UsageError, match=r"\[local\].*'none'"):
        JobFile.parse(RECORD + b"[local]\nsteps = 2\nbatch_size = 4\nlearning_rate = 0.1\n")


@pytest.mark.parametrize("key", [b"epsilon = 3.0", b"delta_dp = 1e-5", b"sampling_rate = 0.1"])
def test_mode_none_may_not_claim_privacy(key):
    with pytest.raises(UsageError, match="promises no privacy"):
        JobFile.parse(swap(NONE, b"[local]", key + b"\n[local]"))


def test_metrics_norm_without_metrics_is_refused():
    with pytest.raises(UsageError, match="metrics_norm"):
        JobFile.parse(swap(NONE, b"[local]", b"metrics_norm = 1.0\n[local]"))


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"[job", b"job = 3", b"metrics = 3", b"[[job]]", b"a" * 70_000,
     b"x = " + b"[" * 20_000, b"[job]\nname = 1"],
)  # fmt: skip
def test_what_is_no_job_file_is_refused(raw):
    with pytest.raises(UsageError, match=r"job\.toml:"):
        JobFile.parse(raw)


def test_faults_of_a_received_file_are_the_senders():
    with pytest.raises(PeerError, match="epsilom") as caught:
        JobFile.parse_received(swap(RECORD, b"epsilon", b"epsilom"))
    assert caught.value.reason is Reason.MALFORMED
    assert JobFile.parse_received(RECORD) == JobFile.parse(RECORD)


def test_the_file_is_named_as_the_caller_names_it():
    with pytest.raises(UsageError, match=r"^apps/credit/job\.toml: "):
        JobFile.parse(b"[jobs]", "apps/credit/job.toml")
