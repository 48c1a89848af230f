"""Move one record and see how far the integers of a sum move: never farther than D2, exactly.

Noise is taken off (the noise stage gives back what it got); all else is the real round on two data
sets that differ in one record. What D2 has to hold, whatever the record is:

- the shift of the sum, for records built to be rounded as far as the clip lets them;
- nothing at all for a record that is not finite, or that was not in this step's sample;
- no more than D2 for a batch of two instead of one: whoever divides by the true number moves all.

Shapes: D = coordinates, M = metrics, d = integers.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from edge_node.audit import claims
from edge_node.audit.finding import Finding
from edge_node.audit.setting import Setting
from edge_node.audit.subject import Records, Rows, ScriptedApp, Subject, Terms, update_of
from edge_node.rounds import row_draw
from privacy import cell_sum, encode, local_steps, pipeline
from privacy.audit.worst_records import over_the_edge, rounded_up, spread
from privacy.noise import NoisedUpdate
from privacy.pipeline import Mode
from privacy.quantise import QuantisedDelta
from privacy.surplus import NoiseShare
from privacy.terms import CohortRules

LENGTH = 384
_SPARSE = 4096  # before a random subset
_LOCAL = "steps = 1\nlearning_rate = 1.0"
_STEP = "steps = 1\nbatch_size = 1\nlearning_rate = 1.0"
_SITES = CohortRules(colluders=1, min_survivors=100, members=140)
_DRAWS = 64  # of the conditional rounding
_ROUNDING_MET = 0.9  # share of what rounding can add that the worst record must reach
_OVERSIZES = (1e3, 1e18, 3e38)  # the last one's square leaves float64's range of float32 sums

Steps = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Record:
    """What the app says of one record.

    Attributes:
        gradient_D: float32, shape (D,).
        metrics_M: float32, shape (M,).
    """

    gradient_D: Rows = field(repr=False)
    metrics_M: Rows = field(repr=False)


def check_rounding(_setting: Setting) -> list[Finding]:
    """Hold the largest shift that one record can cause by its rounding against D2."""
    return [*map(_worst_rounding, _subjects()), _conditional()]


def check_hostile_records(_setting: Setting) -> list[Finding]:
    """Send records that are far too large, or not finite, beside an ordinary one."""
    return [_hostile(subject) for subject in (*_subjects(), Subject.of(claims.LOW_RANK))]


def check_batch_size(_setting: Setting) -> list[Finding]:
    """Add a record without a gradient to a batch of one: nothing else of the mean may move."""
    return [_batch_size(subject) for subject in _subjects()]


def check_memory(_setting: Setting) -> list[Finding]:
    """Take a record that only the first step's sample holds: the second sum must not know it."""
    return [_memory()]


@contextlib.contextmanager
def noise_off() -> Iterator[None]:
    """Have both noise stages add nothing, so that sums can be compared exactly."""

    def skellam(update: QuantisedDelta, _share: NoiseShare, _seed: bytes) -> NoisedUpdate:
        return NoisedUpdate(update.values_d.copy())

    def gaussian(_variance: int, _seed: bytes, count: int) -> Steps:
        return np.zeros(count, dtype=np.int64)

    with (
        mock.patch.object(pipeline, "add_skellam_noise", skellam),
        mock.patch.object(encode, "add_skellam_noise", skellam),
        mock.patch.object(cell_sum, "add_skellam_noise", skellam),
        mock.patch.object(local_steps, "local_noise", gaussian),
    ):
        yield


def summed(subject: Subject, records: Sequence[Record]) -> Steps:
    """Give the integers of a round over these records, in the grid that D2 counts in.

    Mode record-local sends its step scaled by the learning rate and the public batch; both are
    undone here, exactly: they are 1.
    """
    app = ScriptedApp(answers(subject, records))
    with noise_off():
        update = update_of(subject.site(range(len(records)), app), subject.request(1))
    local = subject.plan.local
    if local is None:
        return update.vector_D.astype(np.int64, copy=False)
    in_grid = update.vector_D / (subject.plan.scale * local.grid)
    return np.rint(in_grid).astype(np.int64)


def answers(subject: Subject, records: Sequence[Record]) -> Records:
    """Give what an app answers that knows each row's record by its number."""

    def of_rows(_model_D: Rows, rows: Rows) -> tuple[Rows, Rows]:
        gradients_PD = np.zeros((len(rows), subject.spec.length), dtype=np.float32)
        metrics_PM = np.zeros((len(rows), 2 * subject.terms.bins), dtype=np.float32)
        for place, number in enumerate(rows[:, 0].astype(np.int64)):
            gradients_PD[place] = records[number].gradient_D
            metrics_PM[place] = records[number].metrics_M
        return gradients_PD, metrics_PM

    return of_rows


def _subjects() -> list[Subject]:
    subset = f'map = "rotation+random-k"\nkeep = {LENGTH / _SPARSE}'
    terms = (
        Terms(coordinates=LENGTH),
        Terms(coordinates=LENGTH, bins=3),
        Terms(coordinates=LENGTH, rounding="sum"),
        Terms(coordinates=_SPARSE, compression=subset),
        Terms(
            mode=Mode.RECORD_LOCAL,
            coordinates=LENGTH,
            expected_batch=1,
            update_norm=8.0,
            local=_LOCAL,
        ),
    )
    return [Subject.of(each) for each in terms]


def _worst_rounding(subject: Subject) -> Finding:
    """Search the shift of records of full norm over several numbers of used coordinates."""
    reach, rounding = _reach(subject), claims.sensitivity(subject) - _reach(subject)
    length = subject.plan.length if subject.plan.local is None else subject.spec.length
    shifts = []
    for used in sorted({length, length // 2, length // 3, length // 16}):
        base, record = _hard_pair(subject, used)
        shifts.append(_shift(subject, [base], record))
    stated = _stated(subject)
    least = reach + _ROUNDING_MET * rounding
    return Finding(
        check="neighbours: rounding",
        subject=claims.name_of(subject),
        claim=f"{least:.2f} <= shift <= D2 = {stated:.2f}",
        measured=f"{max(shifts):.2f}",
        passed=least <= max(shifts) <= stated,
    )


def _hostile(subject: Subject) -> Finding:
    base, record = _hard_pair(subject, subject.spec.length // 3)
    far = [
        _shift(subject, [base], Record(record.gradient_D * np.float32(size), record.metrics_M))
        for size in _OVERSIZES
    ]
    broken = []
    for value in (math.nan, math.inf, -math.inf):
        gradient_D = record.gradient_D.copy()
        gradient_D[0] = value
        broken.append(_shift(subject, [base], Record(gradient_D, record.metrics_M)))
    stated = _stated(subject)
    return Finding(
        check="neighbours: hostile record",
        subject=claims.name_of(subject),
        claim=f"large: shift <= {stated:.2f}; not finite: 0",
        measured=f"{max(far):.2f}; {max(broken):.2f}",
        passed=max(far) <= stated and max(broken) == 0,
    )


def _batch_size(subject: Subject) -> Finding:
    _, record = _hard_pair(subject, subject.spec.length // 3)
    nothing = Record(np.zeros_like(record.gradient_D), np.zeros_like(record.metrics_M))
    one, two = (summed(subject, records) for records in ([record], [record, nothing]))
    decoded = [_mean(subject, steps_d) for steps_d in (one, two)]
    moved = float(np.linalg.norm(decoded[1] - decoded[0]))
    return Finding(
        check="neighbours: batch size",
        subject=claims.name_of(subject),
        claim="one more record: the mean keeps still",
        measured=f"moved by {moved:.6g}",
        passed=moved == 0,
    )


def _mean(subject: Subject, steps_d: Steps) -> NDArray[np.float64]:
    """Decode as the server does, and multiply its public divisor out again; grid steps."""
    if subject.plan.local is not None:
        return steps_d.astype(np.float64)
    ring_d = (steps_d & ((1 << subject.plan.bits) - 1)).astype(np.uint32)
    decoded = subject.decode(1, ring_d, subject.rules.min_survivors)
    whole = subject.terms.expected_batch * subject.plan.scale
    return np.concatenate([decoded.gradient_D * whole, decoded.metric_sums_M * subject.plan.scale])


def _conditional() -> Finding:
    """Mode site: a site's vector, halfway between the grid's points, against no movement at all."""
    terms = Terms(mode=Mode.SITE, coordinates=LENGTH, local=_STEP)
    subject = Subject.of(terms, _SITES)
    halfway = spread(_reach(subject), LENGTH, LENGTH, 0.5) / subject.plan.scale
    record = Record(halfway.astype(np.float32), np.zeros(0, dtype=np.float32))
    shifts = [_norm(summed(subject, [record])) for _ in range(_DRAWS)]
    stated = _stated(subject)
    return Finding(
        check="neighbours: rounding",
        subject=f"{claims.name_of(subject)}, {_DRAWS} draws",
        claim=f"{_reach(subject):.2f} < shift <= D2 = {stated:.2f}",
        measured=f"{max(shifts):.2f}",
        passed=_reach(subject) < max(shifts) <= stated,
    )


def _memory() -> Finding:
    subject = Subject.of(Terms(coordinates=LENGTH, rounds=2))
    source = np.random.default_rng(0)
    targets = source.normal(size=(4, LENGTH)).astype(np.float32)

    def of_rows(model_D: Rows, rows: Rows) -> tuple[Rows, Rows]:
        gradients = 0.05 * (model_D - targets[rows[:, 0].astype(np.int64)])
        return gradients.astype(np.float32), np.zeros((len(rows), 0), dtype=np.float32)

    seconds, models = [], []
    for sample in ([0, 1, 2, 3], [0, 1, 2]):
        app = ScriptedApp(of_rows)
        site = subject.site(range(4), app)
        with noise_off(), _sampled(sample):
            update_of(site, subject.request(1))
        with noise_off(), _sampled([0, 1, 2]):
            seconds.append(update_of(site, subject.request(2)).vector_D)
        models += app.models
    moved = _norm(seconds[0] - seconds[1])
    published = all(np.array_equal(model_D, subject.request(1).model_D) for model_D in models)
    return Finding(
        check="neighbours: memory",
        subject="record-distributed, a record of before",
        claim="published model; next sum keeps still",
        measured=f"{'published' if published else 'another'}; moved by {moved:.6g}",
        passed=published and moved == 0,
    )


@contextlib.contextmanager
def _sampled(indices: Sequence[int]) -> Iterator[None]:
    """Have the next samples hold exactly these records."""
    chosen = np.array(indices, dtype=np.int64)
    with mock.patch.object(row_draw, "poisson_sample", return_value=chosen):
        yield


def _hard_pair(subject: Subject, used: int) -> tuple[Record, Record]:
    """Give a base and a record of the whole norm that rounding moves as far as it can."""
    terms, plan = subject.terms, subject.plan
    scale = plan.scale if plan.local is None else 1 / plan.local.grid
    length = plan.length - plan.metrics_length
    norm = terms.clipping_norm * scale
    if terms.rounding == "sum":
        base_d, record_d = over_the_edge(norm, length, min(used, length))
    else:
        base_d, record_d = np.zeros(length), rounded_up(norm, length, min(used, length))
    count = plan.metrics_length
    raw_M = np.zeros(count, dtype=np.float32)
    if count:  # the round scales what the app gives by the layout's factor
        factor = subject.job.metrics.coordinate_scale(terms.metrics_norm) * scale
        raw_M[:] = rounded_up(terms.metrics_norm * scale, count, count) / factor
    return (
        Record(_unmapped(subject, base_d / scale), np.zeros_like(raw_M)),
        Record(_unmapped(subject, record_d / scale), raw_M),
    )


def _unmapped(subject: Subject, mapped_d: NDArray[np.float64]) -> Rows:
    """Give the gradient that the shared map of round 1 takes to these coordinates."""
    linear_map = subject.plan_of(1).linear_map
    count = subject.plan.metrics_length
    whole = linear_map.adjoint(np.concatenate([mapped_d, np.zeros(count)]))
    # A step against the gradient: what is summed is its negative.
    sign = -1.0 if subject.plan.local is None else 1.0
    return np.asarray(sign * whole[: subject.spec.length], dtype=np.float32)


def _shift(subject: Subject, others: Sequence[Record], record: Record) -> float:
    """Give how far one record more moves the sum, grid steps."""
    return _norm(summed(subject, [*others, record]) - summed(subject, others))


def _norm(steps_d: Steps) -> float:
    return math.sqrt(float(np.vdot(steps_d, steps_d)))


def _stated(subject: Subject) -> float:
    local = subject.plan.local
    return subject.plan.sensitivity if local is None else local.sensitivity


def _reach(subject: Subject) -> float:
    """Give C * s: what the clip alone lets through, grid steps."""
    terms, local = subject.terms, subject.plan.local
    clip = math.hypot(terms.clipping_norm, terms.metrics_norm if terms.bins else 0.0)
    return clip * (subject.plan.scale if local is None else 1 / local.grid)
