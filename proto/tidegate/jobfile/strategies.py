"""Name the Flower strategies that run on secure sums, and say why the others cannot.

A secure sum gives a strategy one reply, the mean. Those below compute on nothing else; those in
``REFUSED`` compare or use the replies of single sites, which nobody has here: with one reply they
would run, and be wrong without a word.
"""

from dataclasses import dataclass

from privacy.errors import UsageError
from tidegate.toml_table import Span

_POSITIVE = Span(0, 1e9, open_low=True)
_MOMENT = Span(0, 1, open_high=True)
_SAMPLING = {"fraction_train": Span(0, 1, open_low=True)}
_ADAPTIVE = {**_SAMPLING, "eta": _POSITIVE, "eta_l": _POSITIVE, "tau": _POSITIVE}
_MOMENTS = {**_ADAPTIVE, "beta_1": _MOMENT, "beta_2": _MOMENT}

OPTIONS = {
    "FedAvg": {**_SAMPLING, "server_learning_rate": _POSITIVE},
    "FedProx": {**_SAMPLING, "proximal_mu": Span(0, 1e9)},
    "FedAvgM": {**_SAMPLING, "server_learning_rate": _POSITIVE, "server_momentum": _MOMENT},
    "FedAdagrad": _ADAPTIVE,
    "FedAdam": _MOMENTS,
    "FedYogi": _MOMENTS,
}
"""By strategy: the options of Flower's class that mean something here, and their ranges.

FedAvg with a ``server_learning_rate`` is Flower's FedAvgM without momentum.
"""

STRATEGIES = tuple(OPTIONS)


@dataclass(frozen=True)
class Refusal:
    """Why a strategy cannot run on secure sums, and what to do instead."""

    reason: str
    instead: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.instead}"


_DISTANCES = "picks replies by their distances from each other, and single replies do not exist"
_ORDER = "takes an order statistic over single replies, which do not exist"
_ROBUST = (
    "use FedAvg or FedAvgM: what one site can do to the mean is bounded by [privacy] clipping_norm,"
    " which each site is held to before the sum; [robust] takes the median over groups of sites"
)
_TREES = "joins trees that single sites send, which would show each site's data"
_USE_TREES = "use a job with [trees]: boosted trees grown from secure sums of histograms"
_DP = "clips or noises single replies at the server, after the sum has hidden them"
_USE_MODE = "use [privacy] mode = 'site', whose clip and noise are applied before the sum"

REFUSED = {
    "Krum": Refusal(_DISTANCES, _ROBUST),
    "MultiKrum": Refusal(_DISTANCES, _ROBUST),
    "Bulyan": Refusal(_DISTANCES, _ROBUST),
    "FedMedian": Refusal(_ORDER, _ROBUST),
    "FedTrimmedAvg": Refusal(_ORDER, _ROBUST),
    "QFedAvg": Refusal(
        "weighs each reply by its own loss, and single replies do not exist",
        "use FedAvg, or FedProx for sites whose data differ",
    ),
    "FedXgbBagging": Refusal(_TREES, _USE_TREES),
    "FedXgbCyclic": Refusal(_TREES, _USE_TREES),
    "DifferentialPrivacyClientSideAdaptiveClipping": Refusal(
        "reads from single replies whether each was clipped", _USE_MODE
    ),
    "DifferentialPrivacyClientSideFixedClipping": Refusal(
        "adds noise for a number of replies that it counts itself", _USE_MODE
    ),
    "DifferentialPrivacyServerSideAdaptiveClipping": Refusal(_DP, _USE_MODE),
    "DifferentialPrivacyServerSideFixedClipping": Refusal(_DP, _USE_MODE),
}


def check_strategy(name: str, where: str) -> None:
    """Refuse a strategy of Flower's that needs single replies.

    Args:
        name: Of the class.
        where: What names it, to begin the message with.

    Raises:
        UsageError: It is one of ``REFUSED``; says why, and what to use instead.
    """
    if name in REFUSED:
        raise UsageError(f"{where} {name} cannot run on secure sums: it {REFUSED[name]}")
