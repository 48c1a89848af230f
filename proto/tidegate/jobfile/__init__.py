"""Read job files: see ``job`` for the whole, the other modules for its tables."""

from tidegate.jobfile.compression_table import Compression
from tidegate.jobfile.job import (
    MAX_BYTES,
    JobFile,
    LocalTraining,
    RoundRules,
    Strategy,
)
from tidegate.jobfile.privacy_kinds import (
    MODES,
    NONE,
    RECORD_DISTRIBUTED,
    RECORD_LOCAL,
    SITE,
    LocalPrivacy,
    NoPrivacy,
    Privacy,
    PrivacyUnit,
    RecordPrivacy,
    SitePrivacy,
)
from tidegate.jobfile.robust_table import (
    LEAST_GROUP_SITES,
    LEAST_GROUPS,
    Combine,
    Robust,
)
from tidegate.jobfile.strategies import STRATEGIES
from tidegate.jobfile.work_kinds import (
    SERVER_APP,
    STRATEGY,
    BaseModel,
    Evaluation,
    FlowerApp,
    Statistics,
    Task,
    Trees,
    Work,
)

__all__ = [
    "LEAST_GROUPS",
    "LEAST_GROUP_SITES",
    "MAX_BYTES",
    "MODES",
    "NONE",
    "RECORD_DISTRIBUTED",
    "RECORD_LOCAL",
    "SERVER_APP",
    "SITE",
    "STRATEGIES",
    "STRATEGY",
    "BaseModel",
    "Combine",
    "Compression",
    "Evaluation",
    "FlowerApp",
    "JobFile",
    "LocalPrivacy",
    "LocalTraining",
    "NoPrivacy",
    "Privacy",
    "PrivacyUnit",
    "RecordPrivacy",
    "Robust",
    "RoundRules",
    "SitePrivacy",
    "Statistics",
    "Strategy",
    "Task",
    "Trees",
    "Work",
]
