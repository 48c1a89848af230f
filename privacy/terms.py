"""State what a job and a manifest say about privacy: all that an encoding plan derives from."""

from dataclasses import dataclass

from privacy.accounting.events import Unit
from privacy.accounting.sensitivity import honest_sites
from privacy.compress import MapKind
from privacy.pipeline import Mode
from privacy.quantise import Rounding


@dataclass(frozen=True)
class PrivacyTerms:
    """What a job file says about privacy and encoding, in the units of the job file.

    Attributes:
        mode: Whose contribution the noise hides.
        rounds: How many sums the job opens, evaluations that are counted apart not among them.
        epsilon: Target for all rounds together; 0 in mode ``none``.
        delta_dp: Its delta; 0 in mode ``none``.
        sampling_rate: q; 1 in modes ``none`` and ``site``.
        clipping_norm: C_g (records or users), or C of the whole delta in modes ``none``, ``site``.
        metrics_norm: C_m; 0 without metrics.
        metrics_length: M.
        expected_batch_size: Public expected number of records in a whole cohort's step; in mode
            ``record-local``, in one site's; in modes ``none`` and ``site`` unused.
        max_records: Public bound on one site's records.
        rounding: ``record`` or ``sum``; ignored but in mode ``record-distributed``.
        noise_multiplier: z, or ``None`` to calibrate it to epsilon.
        map_kind: The shared linear map.
        keep: Share of the (rotated) gradient's coordinates that a random subset keeps.
        signal_range: Largest expected coordinate of the sum, as a share of
            ``expected_batch_size * C``: fixes the bit width.
        site_range: For sums whose size is bounded, as counts are: the most that one coordinate of
            one site's sum can be. The ring then holds all members' sums and cannot wrap, and
            ``expected_batch_size`` and ``signal_range`` are unused; 0 for other work.
        surplus_up_to: Survivors of a round in which nobody is lost, where noise that only fewer
            survivors would need is taken off the sum; 0 where all of it stays.
        groups: Into how many a cohort falls, each with a sum and whole noise of its own.
        rank: r of the low-rank map; 0 where no tensor is taken as a matrix. ``keep`` is then the
            share of the other coordinates.
        bits: B of a plain sum that is rounded at random and announces its step size; 0 for the
            widest ring. Sums with noise of their own have theirs from the noise.
        decay: Of a site's residual; see ``EncodingPlan``.
        target: By how much an update is to be smaller than the model in fp32, where the map, the
            rank and the bits follow from it (`privacy.compression_target`); 0 where they are given.
    """

    mode: Mode
    rounds: int
    epsilon: float
    delta_dp: float
    sampling_rate: float
    clipping_norm: float
    metrics_norm: float
    metrics_length: int
    expected_batch_size: float
    max_records: int
    rounding: Rounding
    noise_multiplier: float | None
    map_kind: MapKind
    keep: float
    signal_range: float
    site_range: float = 0.0
    unit: Unit = "record"
    max_rows: int = 0
    local_steps: int = 1
    update_norm: float = 0.0
    evaluation_rounds: int = 0
    evaluation_length: int = 0
    surplus_up_to: int = 0
    groups: int = 1
    rank: int = 0
    bits: int = 0
    decay: float = 0.0
    target: float = 0.0

    @property
    def exchanges(self) -> int:
        """Return how many exchanges epsilon is counted for, evaluations among them."""
        return self.rounds + self.evaluation_rounds

    @property
    def protected(self) -> Unit:
        """Return whose privacy epsilon is about."""
        return "site" if self.mode is Mode.SITE else self.unit


@dataclass(frozen=True)
class CohortRules:
    """What the sealed manifest says about cohorts: c, N_min and the number of members."""

    colluders: int
    min_survivors: int
    members: int

    @property
    def honest_sites(self) -> int:
        """Return m_h = N_min - c: sites whose noise is sure to be in any sum that is opened."""
        return honest_sites(self.min_survivors, self.colluders)
