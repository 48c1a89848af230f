"""Name the privacy a job asks for: one of the four modes of privacy.md, with its numbers."""

from dataclasses import dataclass

from privacy.pipeline import Mode
from privacy.quantise import Rounding

RECORD_DISTRIBUTED = Mode.RECORD_DISTRIBUTED.value
RECORD_LOCAL = Mode.RECORD_LOCAL.value
SITE = Mode.SITE.value
NONE = Mode.NONE.value
MODES = (RECORD_DISTRIBUTED, RECORD_LOCAL, SITE, NONE)


@dataclass(frozen=True)
class PrivacyUnit:
    """Whose contribution the noise hides.

    Attributes:
        kind: "record", "user" or "site".
        column: The column that tells users apart; empty unless the kind is "user".
        max_rows: Most rows of one user that are used; 0 unless the kind is "user".
    """

    kind: str = "record"
    column: str = ""
    max_rows: int = 0


@dataclass(frozen=True)
class RecordPrivacy:
    """Mode ``record-distributed``: Skellam noise inside the secure sum, per record (D-REC).

    ``clipping_norm`` is C_g, ``metrics_norm`` C_m, ``sampling_rate`` the public q, and
    ``expected_batch_size`` the public divisor for the whole cohort. ``noise_multiplier`` z is None
    where it is to be calibrated for epsilon. ``max_records`` bounds a site's records. Trees and
    statistics know their clipping norm themselves: it is 0 here, as is their batch size.
    ``remove_surplus_noise`` takes noise off that only fewer survivors would need.
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
    unit: PrivacyUnit = PrivacyUnit()
    mode: str = RECORD_DISTRIBUTED
    remove_surplus_noise: bool = False


@dataclass(frozen=True)
class LocalPrivacy:
    """Mode ``record-local``: DP-SGD at each site, several noised local steps a round (L-REC).

    ``expected_batch_size`` is the public divisor of one site's step, ``update_norm`` bounds the
    noised difference that leaves (range only: it is private already). ``epochs`` is what the
    operator asked for, 0 where rounds were given instead.
    """

    epsilon: float
    delta_dp: float
    sampling_rate: float
    clipping_norm: float
    metrics_norm: float
    expected_batch_size: int
    max_records: int
    noise_multiplier: float | None
    update_norm: float
    epochs: float = 0.0
    unit: PrivacyUnit = PrivacyUnit()
    mode: str = RECORD_LOCAL


@dataclass(frozen=True)
class SitePrivacy:
    """Mode ``site``: each site's whole clipped difference is the privacy unit."""

    epsilon: float
    delta_dp: float
    clipping_norm: float
    metrics_norm: float
    noise_multiplier: float | None
    unit: PrivacyUnit = PrivacyUnit("site")
    mode: str = SITE
    remove_surplus_noise: bool = False


@dataclass(frozen=True)
class NoPrivacy:
    """Mode ``none``: no noise; the whole site delta is clipped to ``clipping_norm``.

    ``max_records`` bounds a site's records where sums over records are taken as they are (trees,
    statistics, evaluation); 0 for other work.
    """

    clipping_norm: float
    metrics_norm: float
    unit: PrivacyUnit = PrivacyUnit("none")
    mode: str = NONE
    max_records: int = 0


Privacy = RecordPrivacy | LocalPrivacy | SitePrivacy | NoPrivacy
