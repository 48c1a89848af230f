"""Read a job file (``job.toml``): what is trained on which data under which privacy rules.

The bytes travel exactly as the operator submitted them and every side reads them here, so operator,
aggregator and sites judge the same job. Each range and cross-rule is checked once, here, with the
clause of privacy.md that asks for it; what needs the model or the manifest (calibration, bit width)
is in ``privacy.planning``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from privacy.compress import MapKind
from privacy.errors import PeerError, Reason, UsageError
from privacy.metrics import BinnedAuc, MeanMetric, Metric, MetricLayout
from privacy.pipeline import Mode
from privacy.quantise import Rounding
from tidegate.toml_table import Span, Table

MAX_BYTES = 65_536
RECORD_DISTRIBUTED = Mode.RECORD_DISTRIBUTED.value
NONE = Mode.NONE.value
MODES = (RECORD_DISTRIBUTED, NONE)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, spaces, '.', '_' or '-', starting with a letter or digit"
_DATASET = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_DATASET_RULE = "1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit"
_TASK_FILE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_-]*/)*[A-Za-z_][A-Za-z0-9_]*\.py")
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_METRIC_RULE = "1 to 32 of a-z, 0-9, '_' and '-', starting with a letter"

_POSITIVE = Span(0, 1e9, open_low=True)
_OPTIONS = {
    "FedAvg": {"server_learning_rate": _POSITIVE},
    "FedAdam": {
        "eta": _POSITIVE,
        "eta_l": _POSITIVE,
        "beta_1": Span(0, 1, open_high=True),
        "beta_2": Span(0, 1, open_high=True),
        "tau": _POSITIVE,
    },
}
_PRIVACY_KEYS = {
    RECORD_DISTRIBUTED: (
        "mode",
        "unit",
        "epsilon",
        "delta_dp",
        "sampling_rate",
        "clipping_norm",
        "metrics_norm",
        "expected_batch_size",
        "max_records",
        "rounding",
        "noise_multiplier",
    ),
    NONE: ("mode", "clipping_norm", "metrics_norm"),
}
_ALL_KEYS = ("job", "task", "privacy", "local", "metrics", "compression", "strategy", "round")


@dataclass(frozen=True)
class Task:
    """The training code: its file in the app, the seed of the first model, the batch shape."""

    file: str
    seed: int
    physical_batch: int


@dataclass(frozen=True)
class RecordPrivacy:
    """Mode ``record-distributed``: Skellam noise inside the secure sum, per record (D-REC).

    ``clipping_norm`` is C_g, ``metrics_norm`` C_m, ``sampling_rate`` the public q, and
    ``expected_batch_size`` the public divisor for the whole cohort. ``noise_multiplier`` z is None
    where it is to be calibrated for epsilon. ``max_records`` bounds a site's records.
    """

    epsilon: float
    delta_dp: float
    sampling_rate: float
    clipping_norm: float
    metrics_norm: float
    expected_batch_size: int
    max_records: int
    rounding: Rounding
    noise_multiplier: float | None
    unit: str = "record"
    mode: str = RECORD_DISTRIBUTED


@dataclass(frozen=True)
class NoPrivacy:
    """Mode ``none``: no noise; the whole site delta is clipped to ``clipping_norm``."""

    clipping_norm: float
    metrics_norm: float
    mode: str = NONE


@dataclass(frozen=True)
class LocalTraining:
    """Mode ``none`` only: steps of local SGD a round."""

    steps: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class Compression:
    """The linear map; ``keep`` is the share of coordinates kept, ``range`` fixes the bit width.

    ``range`` is the largest expected coordinate of the sum as a fraction of
    ``expected_batch_size`` times C.
    """

    map: MapKind
    keep: float
    range: float


@dataclass(frozen=True)
class Strategy:
    """The server optimiser: a Flower strategy and the options its class takes."""

    name: str
    options: Mapping[str, float]


@dataclass(frozen=True)
class RoundRules:
    """When the aggregator cuts a cohort, and how often it tries a round."""

    target_sites: int
    deadline_s: float
    max_attempts: int


@dataclass(frozen=True)
class JobFile:
    """A whole valid job file."""

    name: str
    dataset: str
    rounds: int
    task: Task
    privacy: RecordPrivacy | NoPrivacy
    local: LocalTraining | None
    metrics: MetricLayout
    compression: Compression
    strategy: Strategy
    round: RoundRules

    @property
    def metrics_length(self) -> int:
        """Return M, the number of metric coordinates of the vector."""
        return self.metrics.length

    @classmethod
    def parse(cls, raw: bytes, name: str = "job.toml") -> "JobFile":
        """Read a job file.

        Args:
            raw: The file, UTF-8, at most 64 KiB.
            name: What to call the file in messages.

        Raises:
            UsageError: What is wrong, in which table and key, and what is allowed.
        """
        top = Table.parse(raw, name, _ALL_KEYS, MAX_BYTES)
        job = top.table("job", ("name", "dataset", "rounds"))
        metrics = _read_metrics(top)
        privacy = _read_privacy(top, metrics)
        return cls(
            name=job.text("name", _NAME, _NAME_RULE),
            dataset=job.text("dataset", _DATASET, _DATASET_RULE),
            rounds=job.whole("rounds", Span(1, 1_000_000)),
            task=_read_task(top),
            privacy=privacy,
            local=_read_local(top, privacy.mode),
            metrics=metrics,
            compression=_read_compression(top),
            strategy=_read_strategy(top),
            round=_read_round(top),
        )

    @classmethod
    def parse_received(cls, raw: bytes) -> "JobFile":
        """Read a job file that came over the wire: its faults are the sender's.

        Raises:
            PeerError: As ``parse`` would say (MALFORMED).
        """
        try:
            return cls.parse(raw)
        except UsageError as error:
            raise PeerError(Reason.MALFORMED, str(error)) from None


def _read_task(top: Table) -> Task:
    task = top.table("task", ("file", "seed", "physical_batch"))
    rule = "a relative path to a .py file of the app, such as 'task.py'"
    return Task(
        file=task.text("file", _TASK_FILE, rule, "task.py"),
        seed=task.whole("seed", Span(0, 2**53), 0),
        physical_batch=task.whole("physical_batch", Span(1, 65_536), 64),
    )


def _read_metrics(top: Table) -> MetricLayout:
    layout: list[Metric] = []
    for table in top.tables("metrics", ("name", "kind", "upper", "bins"), most=16):
        name = table.text("name", _METRIC_NAME, _METRIC_RULE)
        if any(metric.name == name for metric in layout):
            raise table.bad("name", "must differ from the other metrics' names")
        kind = table.choice("kind", ("mean", "binned-auc"))
        alien = "bins" if kind == "mean" else "upper"
        if table.has(alien):
            raise UsageError(f"{table.where} {alien} has no meaning for kind = {kind!r}; remove it")
        if kind == "mean":
            layout.append(MeanMetric(name, table.number("upper", _POSITIVE)))
        else:
            layout.append(BinnedAuc(name, table.whole("bins", Span(2, 1000))))
    return MetricLayout(tuple(layout))


def _read_privacy(top: Table, metrics: MetricLayout) -> RecordPrivacy | NoPrivacy:
    table = top.table("privacy", _PRIVACY_KEYS[RECORD_DISTRIBUTED])
    mode = table.choice("mode", MODES)
    clipping_norm = table.number("clipping_norm", _POSITIVE)
    metrics_norm = table.number("metrics_norm", Span(0, 1e9), 0.0)
    # Metrics are coordinates of the clipped vector, with a norm of their own (D-REC step 3).
    if metrics.length and metrics_norm == 0:
        raise table.bad("metrics_norm", "must be greater than 0, as there are [[metrics]]")
    if metrics_norm > 0 and not metrics.length:
        raise table.bad("metrics_norm", "must be 0 or absent, as there are no [[metrics]]")
    if mode == NONE:
        for key in table.fields:
            if key not in _PRIVACY_KEYS[NONE]:
                raise table.bad(key, "must be absent for mode = 'none', which promises no privacy")
        return NoPrivacy(clipping_norm, metrics_norm)
    return _read_record_privacy(table, clipping_norm, metrics_norm)


def _read_record_privacy(table: Table, clipping_norm: float, metrics_norm: float) -> RecordPrivacy:
    """Read the keys of D-REC; a ``delta_dp`` of 1e-3 or more would allow publishing records."""
    table.choice("unit", ("record",), "record")
    noise_multiplier = None
    if table.has("noise_multiplier"):
        noise_multiplier = table.number("noise_multiplier", Span(0, 1000, open_low=True))
    return RecordPrivacy(
        epsilon=table.number("epsilon", Span(0, 100, open_low=True)),
        delta_dp=table.number("delta_dp", Span(0, 1e-3, open_low=True, open_high=True)),
        sampling_rate=table.number("sampling_rate", Span(0, 1, open_low=True)),
        clipping_norm=clipping_norm,
        metrics_norm=metrics_norm,
        expected_batch_size=table.whole("expected_batch_size", Span(1, 10**9)),
        max_records=table.whole("max_records", Span(1, 10**9), 1_000_000),
        rounding=Rounding(table.choice("rounding", ("record", "sum"), "record")),
        noise_multiplier=noise_multiplier,
    )


def _read_local(top: Table, mode: str) -> LocalTraining | None:
    """Read local steps: they would carry records past the accounting of D-REC (step 2)."""
    if mode == RECORD_DISTRIBUTED:
        if top.has("local"):
            raise UsageError(
                f"{top.where} [local] is for mode = 'none'; remove it: in record-distributed "
                "every gradient is taken at a published model version"
            )
        return None
    table = top.table("local", ("steps", "batch_size", "learning_rate"))
    return LocalTraining(
        steps=table.whole("steps", Span(1, 1_000_000)),
        batch_size=table.whole("batch_size", Span(1, 65_536)),
        learning_rate=table.number("learning_rate", _POSITIVE),
    )


def _read_compression(top: Table) -> Compression:
    table = top.table("compression", ("map", "keep", "range"))
    kind = MapKind(table.choice("map", [kind.value for kind in MapKind], MapKind.IDENTITY))
    keep = table.number("keep", Span(0, 1, open_low=True), 1.0)
    if keep < 1 and not kind.selects:
        raise table.bad("keep", f"must be 1.0 for map = '{kind}'; only random-k keeps fewer")
    return Compression(kind, keep, table.number("range", Span(0, 100, open_low=True), 1.0))


def _read_strategy(top: Table) -> Strategy:
    table = top.table("strategy", ("name", "options"))
    name = table.choice("name", tuple(_OPTIONS))
    spans = _OPTIONS[name]
    options = table.table("options", tuple(spans))
    return Strategy(name, {key: options.number(key, spans[key]) for key in options.fields})


def _read_round(top: Table) -> RoundRules:
    table = top.table("round", ("target_sites", "deadline_s", "max_attempts"))
    return RoundRules(
        target_sites=table.whole("target_sites", Span(2, 200)),
        deadline_s=table.number("deadline_s", Span(0.1, 604_800), 60.0),
        max_attempts=table.whole("max_attempts", Span(1, 100), 5),
    )
