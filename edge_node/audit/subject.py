"""Make what is audited: a job file, its plan as both ends derive it, and sites that run it.

Nothing of the pipeline is built here by hand. The job is text that `JobFile.parse` reads, the plan
comes from `privacy.planning`, the sites are the work places that the daemon runs
(`edge_node.rounds`). Only two things are not real: the data, and the confined app, in whose place a
`ScriptedApp` answers, because an auditor must know each record's gradient.

Shapes: D = coordinates, M = metrics, P = rows of a physical batch, W = numbers of a row.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edge_node.audit.secure_sum import OpenedAttempt, take_off
from edge_node.data import from_table
from edge_node.job_state import encoding_of
from edge_node.rounds.contract import JobAtSite, LocalRound, RoundRequest
from edge_node.rounds.local_dp import LocalDp
from edge_node.rounds.plain_training import PlainTraining
from edge_node.rounds.record_sums import RecordSums
from edge_node.trainer.step_batches import Batches
from edge_node.trainer.time_box import TimeBox
from edge_node.trainer.trainer import OnChunk, Trainer
from privacy.decode import MeanDelta, decode_sum
from privacy.errors import UsageError
from privacy.local_noise import LocalNoise
from privacy.noise import NoisedUpdate
from privacy.pipeline import EncodingPlan, Mode
from privacy.planning import CohortRules, derive_encoding, job_epsilon, step_event
from privacy.ring import reduce_in_place
from privacy.spec import TensorSpec, VectorSpec
from privacy.surplus import levels_reached
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile

Rows = NDArray[np.float32]
Records = Callable[[Rows, Rows], tuple[Rows, Rows]]
"""From a model, shape (D,), and rows, shape (P, W), to gradients (P, D) and metrics (P, M)."""

RULES = CohortRules(colluders=1, min_survivors=4, members=5)
"""Three honest sites are sure; one of five may drop out, and one of the others may collude."""

PHYSICAL_BATCH = 64
_MAP_SEED = bytes(range(32))
_DELTA = 1e-5


@dataclass(frozen=True)
class Terms:
    """What an audited job says, where audits differ.

    Attributes:
        mode: Whose contribution is hidden.
        coordinates: D.
        rows: Of the model's one tensor, where it is a matrix; else 0.
        rounds: Sums that epsilon is counted for.
        epsilon: Target; the noise is calibrated to it.
        bins: Of a metric of 2 * bins coordinates; 0 for no metrics.
        sampling_rate: q, record modes.
        rounding: "record" or "sum", mode record-distributed.
        surplus: Whether noise that the survivors can do without is removed.
        clipping_norm: C_g.
        metrics_norm: C_m where there are metrics.
        expected_batch: Public divisor, record modes.
        update_norm: Mode record-local: bound on what leaves, for the ring's range alone.
        compression: Lines of the job's table [compression].
        local: Lines of its table [local]; mode record-local needs ``steps`` and ``learning_rate``.
    """

    mode: Mode = Mode.RECORD_DISTRIBUTED
    coordinates: int = 1000
    rows: int = 0
    rounds: int = 1
    epsilon: float = 3.0
    bins: int = 0
    sampling_rate: float = 1.0
    rounding: str = "record"
    surplus: bool = False
    clipping_norm: float = 1.0
    metrics_norm: float = 0.25
    expected_batch: int = 100
    update_norm: float = 1e6
    compression: str = 'map = "identity"'
    local: str = ""

    def toml(self) -> bytes:
        """Write the job file."""
        by_record = self.mode.by_record
        privacy = [
            f'mode = "{self.mode}"',
            f"epsilon = {self.epsilon}",
            f"delta_dp = {_DELTA}",
            f"clipping_norm = {self.clipping_norm}",
            f"metrics_norm = {self.metrics_norm if self.bins else 0.0}",
        ]
        if by_record:
            privacy.append(f"sampling_rate = {self.sampling_rate}")
            privacy.append(f"expected_batch_size = {self.expected_batch}")
            privacy.append("max_records = 100000")
        if self.mode is Mode.RECORD_DISTRIBUTED:
            privacy.append(f'rounding = "{self.rounding}"')
        if self.surplus:
            privacy.append("remove_surplus_noise = true")
        if self.mode is Mode.RECORD_LOCAL:
            privacy.append(f"update_norm = {self.update_norm}")
        metric = f'[[metrics]]\nname = "auc"\nkind = "binned-auc"\nbins = {self.bins}\n'
        return "\n".join(
            [
                f'[job]\nname = "dp-audit"\ndataset = "audit"\nrounds = {self.rounds}',
                f"[task]\nphysical_batch = {PHYSICAL_BATCH}",
                '[[columns]]\nname = "record"',
                "[privacy]",
                *privacy,
                f"[local]\n{self.local}" if self.local else "",
                metric if self.bins else "",
                f"[compression]\n{self.compression}",
                '[strategy]\nname = "FedAvg"',
                "[round]\ntarget_sites = 5",
            ]
        ).encode()


class ScriptedApp:
    """Answer in the place of the confined app, from what the auditor knows of each row.

    Attributes:
        models: Each model version that it was handed, in order.
    """

    def __init__(self, records: Records) -> None:
        """Take what rows give; in mode site, their gradient is the site's difference."""
        self._records = records
        self.models: list[Rows] = []

    async def record_gradients(self, model_D: Rows, rows_NW: Rows, on_chunk: OnChunk) -> None:
        """Do what `Trainer.record_gradients` does; padding rows are answered like others."""
        self.models.append(model_D.copy())
        for begin in range(0, len(rows_NW), PHYSICAL_BATCH):
            rows = rows_NW[begin : begin + PHYSICAL_BATCH]
            gradients_PD, metrics_PM = self._records(model_D, rows)
            on_chunk(gradients_PD, metrics_PM, len(rows))

    async def local_steps(
        self, model_D: Rows, batches: Batches, _learning_rate: float, _box: TimeBox | None = None
    ) -> tuple[Rows, Rows]:
        """Do what `Trainer.local_steps` does: the model moves by the first row's "gradient"."""
        gradients_PD, metrics_PM = self._records(model_D, next(iter(batches)))
        return model_D + gradients_PD[0], metrics_PM


@dataclass(frozen=True)
class Subject:
    """An audited job, derived as aggregator and sites derive it.

    Attributes:
        terms: What it says.
        rules: The manifest's.
        job: The job file, parsed.
        spec: Of the model.
        plan: The encoding.
    """

    terms: Terms
    rules: CohortRules
    job: JobFile = field(repr=False)
    spec: VectorSpec = field(repr=False)
    plan: EncodingPlan = field(repr=False)

    @classmethod
    def of(cls, terms: Terms, rules: CohortRules = RULES) -> "Subject":
        """Derive a job's plan.

        Raises:
            UsageError: There is none.
        """
        job = JobFile.parse(terms.toml(), "the audit's job")
        shape = (
            (terms.rows, terms.coordinates // terms.rows) if terms.rows else (terms.coordinates,)
        )
        spec = VectorSpec((TensorSpec("model", shape),))
        plan = derive_encoding(privacy_terms(job), spec, rules, _MAP_SEED)
        return cls(terms, rules, job, spec, plan)

    def epsilon(self, delta: float) -> float:
        """Give epsilon as the accountant claims it for all rounds, at any delta."""
        terms = replace(privacy_terms(self.job), delta_dp=delta)
        return job_epsilon(self.plan, terms, self.rules)

    @property
    def local(self) -> LocalNoise:
        """Return what the plan says about local steps.

        Raises:
            UsageError: It is not of mode record-local.
        """
        if self.plan.local is None:
            raise UsageError(f"mode {self.plan.mode} has no noised local steps to audit")
        return self.plan.local

    @property
    def delta(self) -> float:
        """Return the delta that the job's epsilon is stated at."""
        return _DELTA

    def site(self, record_ids: Sequence[int] | NDArray[np.int64], app: ScriptedApp) -> LocalRound:
        """Make one site's work place, as `make_task_round` does, with some records.

        Args:
            record_ids: What the column "record" holds, at most 2^24 each.
            app: Answers for the app.
        """
        table = np.asarray(record_ids, dtype=np.float32).reshape(-1, 1)
        dataset = from_table("audit", "audit", ("record",), table)
        event = step_event(self.plan, self.rules)
        at_site = JobAtSite("dp-audit", self.job, self.plan, self.spec, event, "enforced", dataset)
        trainer = cast("Trainer", app)
        if self.plan.mode is Mode.RECORD_DISTRIBUTED:
            return RecordSums(at_site, trainer)
        if self.plan.mode is Mode.RECORD_LOCAL:
            return LocalDp(at_site, trainer, None)
        return PlainTraining(at_site, trainer)

    def request(self, number: int) -> RoundRequest:
        """Ask for the update of one round, at a model of zeros."""
        return RoundRequest(number, number, np.zeros(self.spec.length, dtype=np.float32))

    def plan_of(self, number: int) -> EncodingPlan:
        """Give the plan that the updates of a round are encoded with."""
        return encoding_of(self.plan, number)[0]

    def decode(self, number: int, total_d: NDArray[np.uint32], updates: int) -> MeanDelta:
        """Decode an opened sum as the aggregator does, by the job's public divisor."""
        return decode_sum(self.plan_of(number), total_d, self.job.divisor(updates))


def update_of(site: LocalRound, request: RoundRequest) -> NoisedUpdate:
    """Have a site make one update."""
    return asyncio.run(site.make_update(request))


def without(
    opened: OpenedAttempt, known: Mapping[int, NoisedUpdate], plan: EncodingPlan
) -> NDArray[np.uint32]:
    """Take the updates of colluding sites, who tell them to the aggregator, out of a sum."""
    total_d, survivors = opened.total_d, len(opened.survivors)
    left_d = total_d.copy()
    for update in known.values():
        own_d = update.vector_D.astype(np.uint32)
        # What a colluder revealed of its noise is off the sum already.
        take_off(
            own_d, update.surplus_seeds[: levels_reached(plan.surplus_levels, survivors)], plan
        )
        left_d -= own_d
    return reduce_in_place(left_d, plan.bits)
