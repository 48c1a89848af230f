"""Read a job file (``job.toml``): what is done on which data under which privacy rules.

The bytes travel exactly as the operator submitted them and every side reads them here, so operator,
aggregator and sites judge the same job. Each range and cross-rule is checked once, here, with the
clause of privacy.md that asks for it; what needs the model or the manifest (calibration, bit width)
is in ``privacy.planning``.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from privacy.errors import PeerError, Reason, UsageError
from privacy.metrics import BinnedAuc, MeanMetric, Metric, MetricLayout
from tidegate.jobfile.compression_table import Compression, read_compression
from tidegate.jobfile.privacy_kinds import (
    NONE,
    RECORD_DISTRIBUTED,
    RECORD_LOCAL,
    SITE,
    LocalPrivacy,
    Privacy,
    RecordPrivacy,
)
from tidegate.jobfile.privacy_table import read_privacy
from tidegate.jobfile.robust_table import Robust, read_robust
from tidegate.jobfile.strategies import OPTIONS, STRATEGIES, check_strategy
from tidegate.jobfile.work_kinds import (
    SERVER_APP,
    Evaluation,
    FlowerApp,
    Statistics,
    Task,
    Trees,
    Work,
    task_of,
)
from tidegate.jobfile.work_table import WORK_TABLES, read_work
from tidegate.manifest import MAX_SITES
from tidegate.schema import Schema, read_schema
from tidegate.toml_table import Span, Table

MAX_BYTES = 65_536

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, spaces, '.', '_' or '-', starting with a letter or digit"
_DATASET = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_DATASET_RULE = "1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit"
_METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_METRIC_RULE = "1 to 32 letters, digits, '_' and '-', starting with a letter"

_POSITIVE = Span(0, 1e9, open_low=True)
MAX_ROUNDS = 1_000_000
_ALL_KEYS = (
    "job",
    *WORK_TABLES,
    "columns",
    "privacy",
    "local",
    "metrics",
    "evaluation_metrics",
    "compression",
    "strategy",
    "round",
    "robust",
)


@dataclass(frozen=True)
class LocalTraining:
    """A task's local steps in a round: modes ``none``, ``site`` and ``record-local``.

    Attributes:
        steps: How many.
        batch_size: Rows of a step; 0 in mode ``record-local``, where the sampling rate says.
        learning_rate: Of plain SGD; None where the task's ``optimizer(model)`` has its own.
    """

    steps: int
    batch_size: int
    learning_rate: float | None


@dataclass(frozen=True)
class Strategy:
    """The server optimiser: a Flower strategy and the options its class takes."""

    name: str
    options: Mapping[str, float]


@dataclass(frozen=True)
class RoundRules:
    """When the aggregator cuts a cohort, how often it tries a round, and how long sites train.

    ``time_box_s`` is None where each site takes all of its local steps; else it stops after so many
    seconds, and [local] steps is the most that it takes and what its delta is scaled to.
    """

    target_sites: int
    deadline_s: float
    max_attempts: int
    time_box_s: float | None = None


@dataclass(frozen=True)
class JobFile:
    """A whole valid job file.

    Attributes:
        name: For people.
        dataset: The name of the data set that each site declares.
        rounds: Secure sums of training; with a ServerApp, the most that it may ask for.
        work: What is done.
        schema: The columns; None where the job declares none: all of the site's, single numbers.
        privacy: Mode and numbers.
        local: Local steps; None where the work takes none.
        metrics: Layout of the metrics beside a sum of training.
        evaluation_metrics: Layout of the metrics of a Flower app's evaluate; empty else.
        compression: The shared map.
        strategy: The server optimiser; None where the work brings its own.
        round: Cohorts and deadlines.
        robust: Groups whose means are combined; None where the cohort is one.
    """

    name: str
    dataset: str
    rounds: int
    work: Work
    schema: Schema | None
    privacy: Privacy
    local: LocalTraining | None
    metrics: MetricLayout
    evaluation_metrics: MetricLayout
    compression: Compression
    strategy: Strategy | None
    round: RoundRules
    robust: Robust | None = None

    @property
    def task(self) -> Task | None:
        """Return the task file that the job runs; None for other work."""
        return task_of(self.work)

    @property
    def runs_app(self) -> bool:
        """Say whether code of an app runs; else the app is empty (`tidegate.appbundle.EMPTY`)."""
        return not isinstance(self.work, Trees | Statistics)

    @property
    def declares_dp(self) -> bool:
        """Say whether the app's own code adds the noise, so that epsilon is its word (conditional).

        privacy.md, "Who is trusted with the clip".
        """
        return isinstance(self.work, FlowerApp) and self.privacy.mode == RECORD_LOCAL

    @property
    def metrics_length(self) -> int:
        """Return M, the number of metric coordinates of the vector."""
        return self.metrics.length

    def divisor(self, updates: int, share: float = 1.0) -> float:
        """Give the public number that a sum is divided by; 1 where the sum itself is wanted.

        Never a number of records that were there, which is private (privacy.md, D-REC steps 1, 7).

        Args:
            updates: Sites whose updates are in the sum.
            share: Of the cohort's sites, before any dropped out, that the sum's group had.
        """
        if isinstance(self.work, Trees | Statistics | Evaluation):
            return 1.0
        if isinstance(self.privacy, RecordPrivacy):
            return float(self.privacy.expected_batch_size) * share
        return float(updates)

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
        schema = read_schema(top)
        work = read_work(top, schema)
        metrics = _read_metrics(top, "metrics")
        evaluation_metrics = _read_metrics(top, "evaluation_metrics")
        _check_metrics(top, work, metrics, evaluation_metrics)
        privacy = read_privacy(top, work, metrics.length)
        local = _read_local(top, work, privacy.mode)
        strategy = _read_strategy(top, work)
        named = None if strategy is None else (strategy.name, strategy.options)
        rules = _read_round(top, work, privacy.mode)
        return cls(
            name=job.text("name", _NAME, _NAME_RULE),
            dataset=job.text("dataset", _DATASET, _DATASET_RULE),
            rounds=_read_rounds(job, work, privacy, local),
            work=work,
            schema=schema,
            privacy=privacy,
            local=local,
            metrics=metrics,
            evaluation_metrics=evaluation_metrics,
            compression=read_compression(top, work, privacy.mode, named),
            strategy=strategy,
            round=rules,
            robust=read_robust(top, work, rules.target_sites),
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


def _read_rounds(job: Table, work: Work, privacy: Privacy, local: LocalTraining | None) -> int:
    """Read or derive the number of sums: trees, single sums and epochs say it themselves."""
    derived, why = 0, ""
    if isinstance(work, Trees):
        derived, why = work.sums, "[trees] says how many sums its trees take"
    elif isinstance(work, Statistics | Evaluation):
        derived, why = 1, "this work is one sum"
    elif isinstance(privacy, LocalPrivacy) and privacy.epochs:
        steps = local.steps if local is not None else 1
        derived = max(1, math.ceil(privacy.epochs / (privacy.sampling_rate * steps) - 1e-9))
        why = "[privacy] epochs gives it"
    if derived:
        if job.has("rounds"):
            raise job.bad("rounds", f"must be absent: {why}")
        if derived > MAX_ROUNDS:
            raise UsageError(f"{job.where} would take {derived} rounds, {MAX_ROUNDS} is the most")
        return derived
    return job.whole("rounds", Span(1, MAX_ROUNDS))


def _read_metrics(top: Table, key: str) -> MetricLayout:
    layout: list[Metric] = []
    for table in top.tables(key, ("name", "kind", "upper", "bins"), most=16):
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


def _check_metrics(
    top: Table, work: Work, metrics: MetricLayout, evaluation_metrics: MetricLayout
) -> None:
    if evaluation_metrics.length and not isinstance(work, FlowerApp):
        raise top.bad("evaluation_metrics", "must be absent: it is for [flower] only")
    if isinstance(work, FlowerApp):
        both = (*metrics.metrics, *evaluation_metrics.metrics)
        if not all(isinstance(metric, MeanMetric) for metric in both):
            raise UsageError(f"{top.where} a Flower app's metrics are means: kind = 'mean'")
        if work.evaluate_every and not evaluation_metrics.length:
            raise top.bad("evaluation_metrics", "is missing: evaluate_every asks for evaluation")
    if isinstance(work, Trees | Statistics) and metrics.length:
        raise top.bad("metrics", "must be absent: this work has its own")
    if isinstance(work, Evaluation) and not metrics.length:
        raise top.bad("metrics", "is missing: name what the task's metrics() gives")


def _read_local(top: Table, work: Work, mode: str) -> LocalTraining | None:
    """Read local steps: they would carry records past the accounting of D-REC (step 2)."""
    steps_are_ours = isinstance(work, Task) and mode != RECORD_DISTRIBUTED
    declared = isinstance(work, FlowerApp) and mode == RECORD_LOCAL
    if not steps_are_ours and not declared:
        if not top.has("local"):
            return None
        if isinstance(work, Task):
            raise UsageError(
                f"{top.where} [local] is for modes {RECORD_LOCAL!r}, {SITE!r} and {NONE!r}; remove"
                " it: in record-distributed every gradient is taken at a published model version"
            )
        raise UsageError(f"{top.where} [local] is for a [task]; remove it")
    table = top.table("local", ("steps", "batch_size", "learning_rate"))
    batch_size = 0
    if mode != RECORD_LOCAL:
        batch_size = table.whole("batch_size", Span(1, 65_536))
    elif table.has("batch_size"):
        raise table.bad("batch_size", "must be absent: [privacy] sampling_rate draws the batch")
    rate = table.number("learning_rate", _POSITIVE) if table.has("learning_rate") else None
    return LocalTraining(table.whole("steps", Span(1, 1_000_000)), batch_size, rate)


def _read_strategy(top: Table, work: Work) -> Strategy | None:
    owned = isinstance(work, FlowerApp) and work.driver == SERVER_APP
    if owned or isinstance(work, Trees | Statistics | Evaluation):
        if top.has("strategy"):
            raise top.bad("strategy", "must be absent: this work brings its own")
        return None
    table = top.table("strategy", ("name", "options"))
    check_strategy(str(table.fields.get("name")), f"{table.where} name:")
    name = table.choice("name", STRATEGIES)
    spans = OPTIONS[name]
    options = table.table("options", tuple(spans))
    return Strategy(name, {key: options.number(key, spans[key]) for key in options.fields})


def _read_round(top: Table, work: Work, mode: str) -> RoundRules:
    table = top.table("round", ("target_sites", "deadline_s", "max_attempts", "time_box_s"))
    deadline_s = table.number("deadline_s", Span(0.1, 604_800), 60.0)
    return RoundRules(
        target_sites=table.whole("target_sites", Span(2, MAX_SITES)),
        deadline_s=deadline_s,
        max_attempts=table.whole("max_attempts", Span(1, 100), 5),
        time_box_s=_read_time_box(table, work, mode, deadline_s),
    )


def _read_time_box(table: Table, work: Work, mode: str, deadline_s: float) -> float | None:
    """Read the time that each site trains for: only where Tidegate itself takes several steps."""
    key = "time_box_s"
    if not table.has(key):
        return None
    if isinstance(work, FlowerApp):
        why = "a Flower app trains by itself, so nobody here counts its steps"
        hint = "give it its time in [flower] train_config and let it scale its own update"
        raise table.bad(key, f"must be absent: {why}; {hint}")
    if not isinstance(work, Task):
        raise table.bad(key, "must be absent: this work takes no local steps")
    if mode == RECORD_DISTRIBUTED:
        raise table.bad(
            key,
            f"must be absent in mode {mode!r}: a round there is one step, taken at a published"
            " model version; further steps would carry records past the accounting",
        )
    time_box_s = table.number(key, Span(0, 604_800, open_low=True))
    if deadline_s <= time_box_s:
        raise table.bad(
            key, f"must be less than deadline_s, {deadline_s:g}: no site would be ready in time"
        )
    return time_box_s
