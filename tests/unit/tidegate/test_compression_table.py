"""``[compression]``: what it reads, and what it refuses with the reason."""

import pytest

from privacy.compress import MapKind
from privacy.errors import UsageError
from privacy.pipeline import Mode
from tests.support.live_aggregator import NONE, RECORD, job_toml
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import Compression, JobFile

SITE = 'mode = "site"\nepsilon = 12.0\ndelta_dp = 1e-5\nclipping_norm = 1.0'


def read(compression, privacy=NONE, strategy="FedAvg", options=""):
    raw = job_toml(privacy=privacy, strategy=strategy, options=options)
    if privacy == SITE:
        raw += b"[local]\nsteps = 1\nbatch_size = 8\nlearning_rate = 0.1\n"
    return JobFile.parse(raw.replace(b'map = "identity"', compression.encode()))


def test_a_target_says_all():
    job = read('target = "100x"')
    assert job.compression == Compression(MapKind.IDENTITY, 1.0, 1.0, 0, 0, 1.0, 100.0)
    terms = privacy_terms(job)
    assert (terms.mode, terms.target, terms.decay) == (Mode.NONE, 100.0, 1.0)


def test_a_low_rank_map_is_read_whole():
    job = read('map = "low-rank"\nrank = 4\nsmall_keep = 0.2\nbits = 12\nresidual = 0.5')
    assert job.compression == Compression(MapKind.LOW_RANK, 0.2, 1.0, 4, 12, 0.5, 0.0)
    assert read('map = "low-rank"\nrank = 4').compression.residual == 1.0
    assert read('map = "low-rank"\nrank = 4', RECORD).compression.residual == 0.0
    assert read('map = "low-rank"\nrank = 4', SITE).compression.residual == 1.0
    assert read('map = "random-k"\nkeep = 0.5').compression.residual == 0.0


def test_momentum_goes_with_a_residual_that_fades():
    low_rank = 'map = "low-rank"\nrank = 4\n'
    options = "[strategy.options]\nserver_momentum = 0.9"
    assert read(low_rank, strategy="FedAvgM", options=options).compression.residual == 0.9
    options = "[strategy.options]\nserver_momentum = 0.3"
    assert read(low_rank + "residual = 1", strategy="FedAvgM", options=options)


@pytest.mark.parametrize(
    ("compression", "more", "says"),
    [
        ('target = "100"', {}, "as in"),
        ('target = "0x"', {}, "as in"),
        ("target = 100", {}, "as in"),
        ('target = "10x"\nmap = "low-rank"', {}, "must be absent beside target"),
        ('target = "10x"\nbits = 8', {}, "must be absent beside target"),
        ('map = "low-rank"', {}, "rank is missing"),
        ('map = "low-rank"\nrank = 0', {}, "at least 1"),
        ('map = "low-rank"\nrank = 2\nkeep = 0.5', {}, "small_keep says it"),
        ('map = "rotation"\nrank = 2', {}, "low-rank' only"),
        ('map = "rotation"\nsmall_keep = 0.5', {}, "low-rank' only"),
        ('map = "identity"\nbits = 8', {}, "without a rotation"),
        ('map = "random-k"\nbits = 8', {}, "without a rotation"),
        ('map = "rotation"\nbits = 7', {}, "at least 8"),
        ('map = "low-rank"\nrank = 2\nbits = 25', {}, "at most 24"),
        ('map = "rotation"\nbits = 8', {"privacy": RECORD}, "noise in the sum fixes"),
        ('map = "rotation"\nbits = 8', {"privacy": SITE}, "noise in the sum fixes"),
        ('map = "rotation"\nresidual = 0.5', {}, "leaves nothing out"),
        ('map = "low-rank"\nrank = 2\nresidual = 1.5', {}, "at most 1"),
        ('map = "low-rank"\nrank = 2\nresidual = 0.5', {"privacy": RECORD}, "past that sum's"),
        ('map = "top-k"', {}, "each site choose its own coordinates"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(compression, more, says):
    with pytest.raises(UsageError, match=says):
        read(compression, **more)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("FedAvgM", "[strategy.options]\nserver_momentum = 0.9"),
        ("FedAdam", ""),
        ("FedYogi", "[strategy.options]\nbeta_1 = 0.5"),
    ],
)
def test_a_whole_residual_and_momentum_are_refused(strategy, options):
    with pytest.raises(UsageError, match="both repeat earlier updates"):
        read('target = "50x"\nresidual = 1', strategy=strategy, options=options)
