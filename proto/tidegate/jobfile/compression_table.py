"""Read ``[compression]``: how an update is made smaller, and what does not go together with it.

Only maps that are linear, the same for every site and known before masking can be summed under
masks (traffic.md). What breaks a rule of privacy.md or is known to ruin training is refused here,
with the reason.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from privacy.compress import MapKind
from privacy.low_rank import MAX_RANK
from privacy.ring import MIN_BITS
from tidegate.jobfile.privacy_kinds import NONE, RECORD_DISTRIBUTED, RECORD_LOCAL
from tidegate.jobfile.work_kinds import Evaluation, Statistics, Trees, Work
from tidegate.toml_table import Span, Table

MOST_BITS = 24
"""Beyond it a low-rank sum would not be decoded exactly, and no plain sum needs so many."""

_KEYS = ("target", "map", "keep", "range", "rank", "small_keep", "bits", "residual")
_FOUND_BY_TARGET = ("map", "keep", "rank", "small_keep", "bits")
_SHARE = Span(0, 1, open_low=True)
_TARGET = re.compile(r"[1-9][0-9]{0,4}x")
_DEFAULT_SMALL = 0.1
_FADING = 0.9  # the default of a residual beside a server momentum
_MOST_MOMENTUM = 0.3
_MOMENTA = ("server_momentum", "beta_1")
_DEFAULT_MOMENTA = {"FedAdam": 0.9, "FedYogi": 0.9}
_OWN_SUPPORT = ("top-k", "topk", "local-top-k", "threshold")


@dataclass(frozen=True)
class Compression:
    """How an update is made smaller.

    Attributes:
        map: The linear map; where there is a target it says which one.
        keep: Share of coordinates that a random subset keeps; with a low-rank map, of those that
            lie in no matrix.
        range: Fixes the bit width of noised sums, and the first step size of plain ones: the
            largest expected coordinate of the sum as a fraction of ``expected_batch_size`` times C.
        rank: Of the low-rank map; else 0.
        bits: Of a plain sum; 0 where they follow from other numbers.
        residual: Share of what updates left unsaid that goes into the next one.
        target: By how much an update is to be smaller than the model in fp32; 0 where the map says.
    """

    map: MapKind
    keep: float
    range: float
    rank: int = 0
    bits: int = 0
    residual: float = 0.0
    target: float = 0.0


def read_compression(
    top: Table, work: Work, mode: str, strategy: tuple[str, Mapping[str, float]] | None
) -> Compression:
    """Read the table.

    Args:
        top: The job file.
        work: What is done.
        mode: Privacy mode.
        strategy: Name and options of the server optimiser, where the job states one.

    Raises:
        UsageError: A key is out of range, or keys that do not go together; says why.
    """
    table = top.table("compression", _KEYS)
    if isinstance(work, Trees | Statistics | Evaluation):
        _check_counts(table)
    if table.fields.get("map") in _OWN_SUPPORT:
        raise table.bad(
            "map",
            "would let each site choose its own coordinates: masks cancel only where all sites send"
            " the same ones, and which ones a site chose tells of its data; use 'low-rank'",
        )
    target = _read_target(table)
    kind = MapKind(table.choice("map", [kind.value for kind in MapKind], MapKind.IDENTITY))
    low_rank = kind is MapKind.LOW_RANK
    for key in ("rank", "small_keep"):
        if table.has(key) and not low_rank:
            raise table.bad(key, "is for map = 'low-rank' only")
    keep = table.number("keep", _SHARE, 1.0)
    if keep < 1 and not kind.selects:
        instead = "; small_keep says it of the coordinates beside the matrices" if low_rank else ""
        raise table.bad(
            "keep", f"must be 1.0 for map = '{kind}'; only random-k keeps fewer{instead}"
        )
    if low_rank:
        keep = table.number("small_keep", _SHARE, _DEFAULT_SMALL)
    return Compression(
        map=kind,
        keep=keep,
        range=table.number("range", Span(0, 100, open_low=True), 1.0),
        rank=table.whole("rank", Span(1, MAX_RANK)) if low_rank else 0,
        bits=_read_bits(table, kind, mode),
        residual=_read_residual(table, mode, strategy, loses=kind.loses or target > 0),
        target=target,
    )


def _check_counts(table: Table) -> None:
    if table.fields.get("map", MapKind.IDENTITY) != MapKind.IDENTITY:
        raise table.bad("map", "must be 'identity': counts are summed as they are")
    for key in ("target", "bits", "residual"):
        if table.has(key):
            raise table.bad(key, "must be absent: counts are summed as they are")


def _read_target(table: Table) -> float:
    if not table.has("target"):
        return 0.0
    for key in _FOUND_BY_TARGET:
        if table.has(key):
            raise table.bad(key, "must be absent beside target, from which it follows")
    rule = 'how many times smaller than the model in fp32, as in "100x"'
    return float(table.text("target", _TARGET, rule)[:-1])


def _read_bits(table: Table, kind: MapKind, mode: str) -> int:
    if not table.has("bits"):
        return 0
    if mode not in (NONE, RECORD_LOCAL):
        raise table.bad("bits", "must be absent: the noise in the sum fixes its bits")
    if kind not in (MapKind.ROTATION, MapKind.LOW_RANK):
        raise table.bad(
            "bits",
            "is for map = 'rotation' or 'low-rank': without a rotation of everything, metrics"
            " included, the largest coordinate would need the bits and not the usual one",
        )
    return table.whole("bits", Span(MIN_BITS, MOST_BITS))


def _read_residual(
    table: Table,
    mode: str,
    strategy: tuple[str, Mapping[str, float]] | None,
    *,
    loses: bool,
) -> float:
    private, momentum = mode == RECORD_DISTRIBUTED, _momentum(strategy)
    usual = loses and not private and not _is_random_k(table)
    default = _FADING if momentum > _MOST_MOMENTUM else 1.0
    residual = table.number("residual", Span(0, 1), default if usual else 0.0)
    if not residual:
        return 0.0
    if private:
        raise table.bad(
            "residual",
            "must be 0 in mode record-distributed: what is carried over from earlier steps would"
            " take records into a later sum past that sum's accounting",
        )
    if not loses:
        raise table.bad("residual", "must be 0 where the map leaves nothing out")
    if residual == 1 and momentum > _MOST_MOMENTUM:
        raise table.bad(
            "residual",
            f"must be below 1 with a server momentum of {momentum:g}: both repeat earlier updates,"
            f" and together they ruined training in trials; take 0.9, or a momentum of"
            f" {_MOST_MOMENTUM} at most",
        )
    return residual


def _is_random_k(table: Table) -> bool:
    """A subset that a job file of earlier days asks for stays without a residual."""
    return table.fields.get("map") in (MapKind.RANDOM_K, MapKind.ROTATION_RANDOM_K)


def _momentum(strategy: tuple[str, Mapping[str, float]] | None) -> float:
    if strategy is None:
        return 0.0
    name, options = strategy
    stated = [options[key] for key in _MOMENTA if key in options]
    return max(stated, default=_DEFAULT_MOMENTA.get(name, 0.0))
