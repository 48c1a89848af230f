"""Turn what a site trained into the integers it masks, by one signed plan.

The stages stand in `clip`, `compress`, `quantise` and `noise`; here they are put in order, and
nothing else. Whoever holds an `EncodingPlan` holds every public number of the encoding: both ends
read it from the same bytes (secure-aggregation.md, ``mh``), and a plan that understates its own
sensitivity is refused when it is read. Whether its noise is enough for the job's epsilon is for
`privacy.planning` and the site's policy to say.

The vector of a record or a delta is [gradient (D) | metrics (M)], both clipped apart, mapped
together, zero padded to the map's blocks: d integers, not yet reduced mod 2^B. A site's whole delta
is encoded in `privacy.encode`, records here.

A job's plan may leave the step size and the bases of a low-rank map to each model version's
announcement (`privacy.announcement`); the plan of a version then holds both.

Shapes: D = gradient coordinates, M = metrics, N = records of a micro-batch, d = integers.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privacy.accounting.sensitivity import conditional_rounding_sensitivity
from privacy.basis import Basis
from privacy.compress import LinearMap, MapKind
from privacy.errors import PeerError, Reason, UsageError
from privacy.local_noise import LocalNoise
from privacy.low_rank import LowRank
from privacy.low_rank_map import LowRankMap, SharedMap
from privacy.noise import MAX_STD, NoisedUpdate, add_skellam_noise
from privacy.plan_bytes import BESIDE, from_json, to_json
from privacy.quantise import MAX_SENSITIVITY, RecordRule, RecordSum, Rounding
from privacy.ring import MAX_BITS, MIN_BITS
from privacy.spec import MAX_LENGTH
from privacy.surplus import NoiseLevel, NoiseShare

MAX_RECORDS = 2**40
_MAX_PLAN_BYTES = 1 << 17  # of which the matrices of a low-rank map take most


class Mode(StrEnum):
    """Whose contribution the noise hides (privacy.md, "Modes"), by the names in job files."""

    RECORD_DISTRIBUTED = "record-distributed"
    RECORD_LOCAL = "record-local"
    SITE = "site"
    NONE = "none"

    @property
    def shares_noise(self) -> bool:
        """Whether each site adds only its part of the sum's noise.

        The privacy of such a sum is counted in honest survivors, N_min - c, which secure
        aggregation promises on the complete graph only (secure-aggregation.md, "Noise").
        """
        return self in (Mode.RECORD_DISTRIBUTED, Mode.SITE)

    @property
    def by_record(self) -> bool:
        """Whether records, or users, are sampled and clipped one by one."""
        return self in (Mode.RECORD_DISTRIBUTED, Mode.RECORD_LOCAL)


_ROUNDINGS = {
    Mode.RECORD_DISTRIBUTED: (Rounding.RECORD, Rounding.SUM),
    Mode.RECORD_LOCAL: (Rounding.PLAIN, Rounding.STOCHASTIC),
    Mode.SITE: (Rounding.CONDITIONAL,),
    Mode.NONE: (Rounding.PLAIN, Rounding.STOCHASTIC),
}
_UNITS = {
    Mode.RECORD_DISTRIBUTED: ("record", "user"),
    Mode.RECORD_LOCAL: ("record", "user"),
    Mode.SITE: ("site",),
    Mode.NONE: ("none",),
}


@dataclass(frozen=True)
class EncodingPlan:
    """Every public number of the encoding; the same at every site of a cohort.

    Attributes:
        mode: Whose contribution the noise hides.
        spec_digest: Digest of the model's `VectorSpec`, 32 bytes.
        gradient_length: D.
        metrics_length: M.
        map_kind: Parts of the shared linear map.
        map_seed: Its 32 public bytes.
        kept: Coordinates that a random subset keeps of the (rotated) gradient; 0 without one.
        scale: s, grid steps per unit.
        bits: B of the ring.
        clip_gradient: C_g, parameter units; of the site's whole difference in modes site, none and
            record-local, where it is no privacy matter in the last two: it only bounds the range.
        clip_metrics: C_m, metric units, likewise; 0 exactly when M is 0.
        rounding: How the grid is reached; which ones there are depends on the mode.
        unit: Whose contribution is bounded: "record", "user" (whose rows are summed before the
            clip), "site"; "none" in mode ``none``.
        max_rows: Most rows of one user that are used; 0 unless the unit is a user.
        n_max: Record modes: public cap on the records of a site's data set; else 0.
        sampling_rate: q, record modes: the public Poisson rate; else 1.
        noise_multiplier: z of the whole cohort's noise, or of each local step's in record-local; 0
            in mode ``none``.
        sensitivity: D2, grid units, at least that of clip, scale, map and rounding; 0 where the
            sum itself is not noised: in mode ``none``, and in record-local, where ``local`` has it.
        noise_variance: V_site, variance of one site's share, grid units squared, rounded up to a
            whole number; 0 where the sum itself is not noised.
        local: Mode record-local: clip, grid and noise of each local step; else None.
        noise_levels: What a share needs where more than N_min sites survive; empty where all noise
            stays in the sum (`privacy.surplus`).
        low_rank: Map LOW_RANK: its matrices and what a version says of them; else None.
        decay: Share of a site's residual that goes into its next update (`privacy.residual`); 0 in
            mode record-distributed, where it would carry records past the accounting.
        basis: The bases that ``low_rank.basis_digest`` names; None in a job's own plan.

    Raises:
        PeerError: MALFORMED: a field is out of range or does not fit another one; POLICY: the
            sensitivity or the local noise is understated, or too large to be checked exactly.
    """

    mode: Mode
    spec_digest: bytes
    gradient_length: int
    metrics_length: int
    map_kind: MapKind
    map_seed: bytes
    kept: int
    scale: float
    bits: int
    clip_gradient: float
    clip_metrics: float
    rounding: Rounding
    unit: str
    max_rows: int
    n_max: int
    sampling_rate: float
    noise_multiplier: float
    sensitivity: float
    noise_variance: int
    local: LocalNoise | None
    noise_levels: tuple[NoiseLevel, ...] = ()
    low_rank: LowRank | None = None
    decay: float = 0.0
    basis: Basis | None = field(default=None, repr=False, compare=False, metadata={BESIDE: True})

    def __post_init__(self) -> None:
        self._check_ranges()
        try:
            required = self._required_sensitivity()
        except UsageError as error:  # here a wrong map is the plan's fault, not ours
            raise PeerError(Reason.MALFORMED, str(error)) from error
        stated = self.sensitivity if self.local is None else self.local.sensitivity
        if not required <= stated <= MAX_SENSITIVITY:
            message = (
                f"the plan states a sensitivity of {stated} grid steps; its clip, scale,"
                f" map and rounding give {required}, and {MAX_SENSITIVITY} is the most"
            )
            raise PeerError(Reason.POLICY, message)
        if self.local is not None:
            self.local.check_noise(self.noise_multiplier)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "EncodingPlan":
        """Read a plan from its canonical bytes.

        Raises:
            PeerError: MALFORMED: these are not the canonical bytes of a plan; else as the class.
        """
        try:
            plan: EncodingPlan = from_json(cls, raw, _MAX_PLAN_BYTES)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            message = "an encoding plan is a JSON object with exactly the fields of a plan"
            raise PeerError(Reason.MALFORMED, message) from error
        if plan.to_bytes() != raw:
            message = "an encoding plan must come in its canonical form: compact JSON, sorted keys"
            raise PeerError(Reason.MALFORMED, message)
        return plan

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: compact ASCII JSON, keys sorted, bytes in hexadecimal."""
        return to_json(self)

    def with_map_seed(self, map_seed: bytes) -> "EncodingPlan":
        """Give the same plan with another round's map seed.

        Args:
            map_seed: 32 public bytes.
        """
        return dataclasses.replace(self, map_seed=map_seed)

    @property
    def announces_scale(self) -> bool:
        """Whether each version's announcement says the step size, on which no privacy rests."""
        return self.rounding is Rounding.STOCHASTIC

    @cached_property
    def linear_map(self) -> SharedMap:
        """Return the shared map over [gradient | metrics]; a subset leaves the metrics alone."""
        if self.low_rank is not None:
            length = self.gradient_length + self.metrics_length
            return LowRankMap(self.low_rank, length, self.metrics_length, self.map_seed, self.basis)
        tail = self.metrics_length if self.map_kind.selects else 0
        length = self.gradient_length + self.metrics_length
        return LinearMap(self.map_kind, length, tail, self.kept, self.map_seed)

    @property
    def length(self) -> int:
        """Return d: integers on the wire, all padding counted.

        In a job's own plan with a low-rank map, the larger d of even and odd versions.
        """
        return self.linear_map.output_length

    @property
    def metrics_tail(self) -> int:
        """Return how many of the last integers hold metrics and nothing else.

        The model needs none of them, so nobody is sent them; a rotation of all coordinates mixes
        the metrics in, and there are none.
        """
        apart = self.map_kind.selects or self.map_kind is MapKind.IDENTITY
        return self.metrics_length if apart else 0

    def length_at(self, version: int) -> int:
        """Return d of the updates that start from a model version."""
        return self.linear_map.output_at(version % 2)

    @property
    def longest(self) -> int:
        """Return the largest d of any version: what sensitivity and epsilon are counted with."""
        return self.linear_map.longest_output

    @property
    def clip(self) -> float:
        """Return C with C^2 = C_g^2 + C_m^2."""
        return math.hypot(self.clip_gradient, self.clip_metrics)

    @property
    def metrics_norm(self) -> float:
        """Return the norm that a site brings its metrics to: what their sums are read back by.

        In record-local the metrics of a step are noised at the norm of ``local``; where the step
        size is announced, they then get the share of the ring that `clip_metrics` stands for.
        """
        if self.local is None:
            return self.clip_metrics
        if not (self.announces_scale and self.metrics_length):
            return self.local.clip_metrics
        reach = self.local.metric_reach(self.noise_multiplier, self.metrics_length)
        return self.local.clip_metrics * (self.clip_metrics / reach)

    @property
    def noise_share(self) -> NoiseShare:
        """Return a site's share of the noise, in its parts."""
        return NoiseShare(self.noise_variance, self.noise_levels)

    @property
    def surplus_levels(self) -> tuple[int, ...]:
        """Return the numbers of survivors at which one more seed is revealed in step 4."""
        return tuple(level.survivors for level in self.noise_levels)

    @cached_property
    def record_rule(self) -> RecordRule:
        """Return what fixes the sensitivity in record modes: of the sum, or of a local step's."""
        local = self.local
        if local is None:
            return RecordRule(
                linear_map=self.linear_map,
                metrics=self.metrics_length,
                clip_gradient=self.clip_gradient,
                clip_metrics=self.clip_metrics,
                scale=self.scale,
                rounding=self.rounding,
                n_max=self.n_max,
                by_user=self.unit == "user",
            )
        length = self.gradient_length + self.metrics_length
        return RecordRule(
            linear_map=LinearMap(MapKind.IDENTITY, length, 0, 0, self.map_seed),
            metrics=self.metrics_length,
            clip_gradient=local.clip_gradient,
            clip_metrics=local.clip_metrics,
            scale=1 / local.grid,
            rounding=Rounding.RECORD,
            n_max=self.n_max,
            by_user=self.unit == "user",
        )

    def _required_sensitivity(self) -> float:
        """Return the least D2 that a plan with this clip, scale, map and rounding may state."""
        length = self.longest  # building the map checks it, in every mode
        if isinstance(self.linear_map, LowRankMap) and self.bits > self.linear_map.exact_bits():
            raise UsageError(
                f"a low-rank map of rank {self.linear_map.layout.rank} is decoded exactly up to"
                f" {self.linear_map.exact_bits()} bits, not {self.bits}"
            )
        if self.mode.by_record:
            return self.record_rule.sensitivity
        if self.mode is Mode.SITE:
            return conditional_rounding_sensitivity(self.clip, self.scale, length).D2
        return 0.0

    def _check_ranges(self) -> None:
        private = self.mode is not Mode.NONE
        local = self.mode is Mode.RECORD_LOCAL
        noised = private and not local
        by_record = self.mode.by_record
        checks = {
            "spec_digest": len(self.spec_digest) == 32,
            "gradient_length": 1 <= self.gradient_length <= MAX_LENGTH,
            "metrics_length": 0 <= self.metrics_length <= MAX_LENGTH,
            "scale": _positive(self.scale),
            "bits": MIN_BITS <= self.bits <= MAX_BITS,
            "clip_gradient": _positive(self.clip_gradient),
            "clip_metrics": (
                _positive(self.clip_metrics) if self.metrics_length else self.clip_metrics == 0
            ),
            "rounding": self.rounding in _ROUNDINGS[self.mode],
            "unit": self.unit in _UNITS[self.mode],
            "max_rows": (
                1 <= self.max_rows <= MAX_RECORDS if self.unit == "user" else self.max_rows == 0
            ),
            "n_max": 1 <= self.n_max <= MAX_RECORDS if by_record else self.n_max == 0,
            "sampling_rate": 0 < self.sampling_rate <= 1 if by_record else self.sampling_rate == 1,
            "noise_multiplier": (
                _positive(self.noise_multiplier) if private else self.noise_multiplier == 0
            ),
            "sensitivity": _positive(self.sensitivity) if noised else self.sensitivity == 0,
            "noise_variance": (
                1 <= self.noise_variance <= MAX_STD**2 if noised else self.noise_variance == 0
            ),
            "local": (self.local is not None) == local,
            "low_rank": (self.low_rank is not None) == (self.map_kind is MapKind.LOW_RANK),
            "decay": 0 <= self.decay <= (0 if self.mode is Mode.RECORD_DISTRIBUTED else 1),
            "noise_levels": not self.noise_levels or (noised and self.noise_share.is_valid),
        }
        if self.local is not None:
            checks["local"] &= (self.local.clip_metrics > 0) == (self.metrics_length > 0)
        for name, good in checks.items():
            if not good:
                message = (
                    f"plan field {name} = {getattr(self, name)!r} does not fit mode {self.mode}"
                )
                raise PeerError(Reason.MALFORMED, message)


class RecordAccumulator:
    """Encode a step's records as they come, micro-batch by micro-batch (mode D-REC).

    Memory is that of one vector and a small block. One accumulator makes one update.
    """

    def __init__(self, plan: EncodingPlan) -> None:
        if plan.mode is not Mode.RECORD_DISTRIBUTED:
            message = f"records are summed in mode record-distributed, not {plan.mode}"
            raise UsageError(message)
        self._plan = plan
        self._sum: RecordSum | None = RecordSum(plan.record_rule)

    def add(
        self,
        grads_ND: NDArray[np.float32],
        metrics_NM: NDArray[np.float32],
        mask_N: NDArray[np.bool_] | None = None,
        last_N: NDArray[np.bool_] | None = None,
    ) -> None:
        """Clip, map, round and add records; one that is not finite counts as zero.

        Where the plan's unit is a user, the rows of each are summed first, then clipped once; a
        user with a row that is not finite counts as zero.

        Args:
            grads_ND: What each record adds to the sum before its clip, float32, shape (N, D):
                minus its gradient, so that the decoded mean is a descent step.
            metrics_NM: float32, shape (N, M), metric units.
            mask_N: False for padding rows; None when all are records.
            last_N: Unit user: True at the last row of each user; see `RecordSum.add`.

        Raises:
            PeerError: WRONG_SHAPE: the trainer's arrays have other shapes or types.
            UsageError: More than n_max records, ``last_N`` does not fit the unit, or the
                accumulator is finished.
        """
        self._open().add(grads_ND, metrics_NM, mask_N, last_N)

    def finish(self, noise_seed: bytes) -> NoisedUpdate:
        """Add the noise share and close the accumulator; an empty batch is noise alone.

        Args:
            noise_seed: 32 secret bytes, fresh for this attempt.

        Raises:
            UsageError: The accumulator is finished, the seed is not 32 bytes, or a user's last row
                never came.
        """
        quantised = self._open().finish()
        self._sum = None
        plan = self._plan
        return add_skellam_noise(quantised, plan.noise_share, noise_seed)

    def _open(self) -> RecordSum:
        if self._sum is None:
            message = "this accumulator has made its update; a step needs one of its own"
            raise UsageError(message)
        return self._sum


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
