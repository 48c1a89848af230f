"""Read ``[privacy]``; each range and cross-rule with the clause of privacy.md that asks for it."""

import re
from typing import TypedDict

from privacy.errors import UsageError
from privacy.quantise import Rounding
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
from tidegate.jobfile.work_kinds import Evaluation, FlowerApp, Statistics, Trees, Work
from tidegate.toml_table import Span, Table

_TARGET = ("mode", "epsilon", "delta_dp", "noise_multiplier")
_RECORDS = ("unit", "user_column", "max_rows_per_user", "max_records", "sampling_rate")
_NORMS = ("clipping_norm", "metrics_norm")
_SURPLUS = "remove_surplus_noise"
_KEYS = {
    RECORD_DISTRIBUTED: (*_TARGET, *_RECORDS, *_NORMS, "expected_batch_size", "rounding", _SURPLUS),
    RECORD_LOCAL: (
        *_TARGET,
        *_RECORDS,
        *_NORMS,
        "expected_batch_size",
        "update_norm",
        "epochs",
    ),
    SITE: (*_TARGET, "unit", *_NORMS, _SURPLUS),
    NONE: ("mode", "max_records", *_NORMS),
}
_ALL_KEYS = tuple(dict.fromkeys(key for keys in _KEYS.values() for key in keys))
_POSITIVE = Span(0, 1e9, open_low=True)
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")


class _Shared(TypedDict):
    """What the modes by record and by user have in common."""

    epsilon: float
    delta_dp: float
    sampling_rate: float
    clipping_norm: float
    metrics_norm: float
    expected_batch_size: int
    max_records: int
    noise_multiplier: float | None
    unit: PrivacyUnit


def read_privacy(top: Table, work: Work, metrics_length: int) -> Privacy:
    """Read the privacy mode and its numbers, as the work allows them.

    Args:
        top: The job file.
        work: What the job does.
        metrics_length: M.

    Raises:
        UsageError: Which key, and what it may be; or why this work cannot have this mode.
    """
    table = top.table("privacy", _ALL_KEYS)
    mode = table.choice("mode", MODES)
    for key in table.fields:
        if key not in _KEYS[mode]:
            promise = ", which promises no privacy" if mode == NONE else ""
            raise table.bad(key, f"must be absent for mode = {mode!r}{promise}")
    _check_combination(table, mode, work)
    counted = isinstance(work, Trees | Statistics | Evaluation)
    clipping_norm = _read_clipping_norm(table, counted=counted)
    norms = clipping_norm, _read_metrics_norm(table, work, metrics_length)
    if mode == NONE:
        if not counted and table.has("max_records"):
            raise table.bad("max_records", "must be absent for mode = 'none' but where sums count")
        return NoPrivacy(*norms, max_records=_read_most(table) if counted else 0)
    if mode == SITE:
        table.choice("unit", ("site",), "site")
        remove = table.flag(_SURPLUS, default=False)
        noise = _read_noise(table)
        return SitePrivacy(*_read_target(table), *norms, noise, remove_surplus_noise=remove)
    return _read_by_record(table, mode, norms, counted=counted)


def _read_by_record(
    table: Table, mode: str, norms: tuple[float, float], *, counted: bool
) -> RecordPrivacy | LocalPrivacy:
    """Read the modes whose unit is a record or a user, of norms C and C_m."""
    unit = _read_unit(table)
    epsilon, delta_dp = _read_target(table)
    rate = Span(0, 1, open_low=True)
    if counted:
        _check_counted(table, unit)
        sampling_rate, batch = table.number("sampling_rate", rate, 1.0), 0
    else:
        sampling_rate = table.number("sampling_rate", rate)
        batch = table.whole("expected_batch_size", Span(1, 10**9))
    shared: _Shared = {
        "epsilon": epsilon,
        "delta_dp": delta_dp,
        "sampling_rate": sampling_rate,
        "clipping_norm": norms[0],
        "metrics_norm": norms[1],
        "expected_batch_size": batch,
        "max_records": _read_most(table),
        "noise_multiplier": _read_noise(table),
        "unit": unit,
    }
    if mode == RECORD_LOCAL:
        return LocalPrivacy(
            **shared,
            update_norm=table.number("update_norm", _POSITIVE),
            epochs=table.number("epochs", _POSITIVE) if table.has("epochs") else 0.0,
        )
    rounding = Rounding(table.choice("rounding", ("record", "sum"), "record"))
    remove = table.flag(_SURPLUS, default=False)
    return RecordPrivacy(**shared, rounding=rounding, remove_surplus_noise=remove)


def _read_clipping_norm(table: Table, *, counted: bool) -> float:
    if not counted:
        return table.number("clipping_norm", _POSITIVE)
    if table.has("clipping_norm"):
        raise table.bad("clipping_norm", "must be absent: this work knows its own bound")
    return 0.0


def _check_counted(table: Table, unit: PrivacyUnit) -> None:
    """Refuse what sums over single records have no use for."""
    if table.has("expected_batch_size"):
        raise table.bad("expected_batch_size", "must be absent: sums are not divided here")
    if table.has("rounding") and table.fields["rounding"] != Rounding.RECORD.value:
        raise table.bad("rounding", "must be 'record' or absent: each record's values are checked")
    if unit.kind == "user":
        raise table.bad(
            "unit",
            "must be 'record' for this work: a site whose budget is by user charges each record as"
            " the most rows that a user has",
        )


def _check_combination(table: Table, mode: str, work: Work) -> None:
    """Refuse what nobody could vouch for (privacy.md, "Who is trusted with the clip")."""
    if isinstance(work, FlowerApp) and mode == RECORD_DISTRIBUTED:
        raise UsageError(
            f"{table.where} mode = {mode!r} cannot run an unchanged ClientApp: its own code would"
            " be trusted with each record's clip. Use mode = 'site' or 'none'; or 'record-local'"
            " where the app itself trains with DP, which is shown as conditional on its reviewed"
            " code; or bring model() and loss() as a [task], whose records Tidegate clips itself"
        )
    if isinstance(work, Trees | Statistics | Evaluation) and mode not in (RECORD_DISTRIBUTED, NONE):
        raise UsageError(
            f"{table.where} mode = {mode!r} has no meaning for sums over records; use"
            " 'record-distributed' or 'none'"
        )
    if isinstance(work, FlowerApp) and mode == RECORD_LOCAL and not table.has("noise_multiplier"):
        raise table.bad(
            "noise_multiplier",
            "is missing: the app itself adds the noise, so the job must state what it declares",
        )


def _read_metrics_norm(table: Table, work: Work, metrics_length: int) -> float:
    """Read C_m: metrics are coordinates of the clipped vector, with a norm of their own."""
    if isinstance(work, Evaluation):
        if table.has("metrics_norm"):
            raise table.bad("metrics_norm", "must be absent: this work knows its own bound")
        return 0.0
    metrics_norm = table.number("metrics_norm", Span(0, 1e9), 0.0)
    if metrics_length and metrics_norm == 0:
        raise table.bad("metrics_norm", "must be greater than 0, as there are [[metrics]]")
    if metrics_norm > 0 and not metrics_length:
        raise table.bad("metrics_norm", "must be 0 or absent, as there are no [[metrics]]")
    return metrics_norm


def _read_target(table: Table) -> tuple[float, float]:
    """Read (epsilon, delta_dp); a ``delta_dp`` of 1e-3 or more would allow publishing records."""
    epsilon = table.number("epsilon", Span(0, 100, open_low=True))
    return epsilon, table.number("delta_dp", Span(0, 1e-3, open_low=True, open_high=True))


def _read_most(table: Table) -> int:
    return table.whole("max_records", Span(1, 10**9), 1_000_000)


def _read_noise(table: Table) -> float | None:
    if not table.has("noise_multiplier"):
        return None
    return table.number("noise_multiplier", Span(0, 1000, open_low=True))


def _read_unit(table: Table) -> PrivacyUnit:
    kind = table.choice("unit", ("record", "user"), "record")
    if kind == "user":
        rule = "the name of the column that tells users apart"
        return PrivacyUnit(
            kind,
            table.text("user_column", _COLUMN, rule),
            table.whole("max_rows_per_user", Span(1, 10_000)),
        )
    for key in ("user_column", "max_rows_per_user"):
        if table.has(key):
            raise table.bad(key, "must be absent unless unit = 'user'")
    return PrivacyUnit(kind)
