"""Carry an audit's report out of the confined process: JSON and raw arrays, no code.

The process runs an app's code, so the daemon's side takes nothing on trust: sizes, kinds, names and
numbers are checked, text is made printable and cut off, and the whole verdict is formed anew from
the findings. That an app lies about its own audit cannot be seen from here (ADR 16).

The bytes: u32 length of the JSON, the JSON, then each finding's arrays: originals, reconstructions
and, where there are any, the marks of what is right.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason
from privacy.leakage.verdict import (
    MAX_SHOWN,
    Evidence,
    EvidenceKind,
    Exposure,
    Finding,
    Metric,
    Report,
    Verdict,
    report_of,
)
from tidegate.convert import printable

MAX_BYTES = 32 << 20
_LENGTH = struct.Struct(">I")
_MOST_FINDINGS = 64
_MOST_DETAILS = 32
_MOST_COLUMNS = 4096
_MOST_NUMBERS = 1 << 20
_TEXT = 400
_NAME = 80
_TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "int64": np.dtype("<i8")}

Array = NDArray[np.float32 | np.int64]


def pack_report(report: Report) -> bytes:
    """Write a report with its evidence (confined side); evidence that is too large is left out."""
    found, parts = [], []
    room = MAX_BYTES // 2
    for finding in report.findings:
        fields = _fields_of(finding)
        arrays = _arrays_of(finding.evidence)
        size = sum(len(part) for part in arrays)
        if finding.evidence is not None and size <= room:
            fields["evidence"] = _describe(finding.evidence)
            parts += arrays
            room -= size
        found.append(fields)
    head = json.dumps({"findings": found}, allow_nan=False).encode("ascii")
    return b"".join((_LENGTH.pack(len(head)), head, *parts))


def read_report(raw: bytes) -> Report:
    """Read a report that a confined process gave.

    Raises:
        PeerError: MALFORMED: it is none.
    """
    try:
        (length,) = _LENGTH.unpack_from(raw)
        head = json.loads(raw[_LENGTH.size : _LENGTH.size + length])
        reader = _Reader(raw, _LENGTH.size + length)
        findings = [_read_finding(entry, reader) for entry in _entries(head)]
        reader.finish()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, struct.error) as error:
        message = "the confined process gave no report of an audit"
        raise PeerError(Reason.MALFORMED, message) from error
    return report_of(findings)


def _entries(head: Any) -> list[Any]:
    entries = head["findings"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MOST_FINDINGS:
        raise ValueError
    return entries


class _Reader:
    """Take arrays off the bytes, one after the other."""

    def __init__(self, raw: bytes, position: int) -> None:
        self._raw = raw
        self._position = position

    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
        """Give the next array, a copy."""
        size = math.prod(shape) * kind.itemsize
        end = self._position + size
        if end > len(self._raw):
            raise ValueError
        part = np.frombuffer(self._raw[self._position : end], dtype=kind)
        self._position = end
        return part.reshape(shape).copy()

    def finish(self) -> None:
        """See that nothing is left."""
        if self._position != len(self._raw):
            raise ValueError


def _fields_of(finding: Finding) -> dict[str, Any]:
    return {
        "attack": finding.attack,
        "title": finding.title,
        "exposure": finding.exposure.value,
        "metric": finding.metric.value,
        "score": _plain(finding.score),
        "baseline": _plain(finding.baseline),
        "verdict": finding.verdict.value,
        "reason": finding.reason,
        "details": {name: _plain(value) for name, value in finding.details.items()},
        "evidence": None,
    }


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _describe(evidence: Evidence) -> dict[str, Any]:
    return {
        "kind": evidence.kind.value,
        "columns": list(evidence.columns),
        "shape": list(evidence.originals.shape),
        "dtype": str(evidence.originals.dtype),
        "right": evidence.right is not None,
    }


def _arrays_of(evidence: Evidence | None) -> list[bytes]:
    if evidence is None:
        return []
    arrays: Iterable[NDArray[Any] | None] = (
        evidence.originals,
        evidence.reconstructions,
        evidence.right,
    )
    return [np.ascontiguousarray(array).tobytes() for array in arrays if array is not None]


def _read_finding(entry: dict[str, Any], reader: _Reader) -> Finding:
    details = dict(_details(entry["details"]))
    verdict = Verdict(entry["verdict"])
    score, baseline = _number(entry["score"]), _number(entry["baseline"])
    if verdict is Verdict.PASS and not (math.isfinite(score) and math.isfinite(baseline)):
        raise ValueError  # a PASS without figures shows nothing
    return Finding(
        attack=_text(entry["attack"], _NAME),
        title=_text(entry["title"], _TEXT),
        exposure=Exposure(entry["exposure"]),
        metric=Metric(entry["metric"]),
        score=score,
        baseline=baseline,
        verdict=verdict,
        reason=_text(entry["reason"], _TEXT),
        details=details,
        evidence=_read_evidence(entry["evidence"], reader),
    )


def _details(value: Any) -> Iterator[tuple[str, float]]:
    if not isinstance(value, dict) or len(value) > _MOST_DETAILS:
        raise ValueError
    for name, number in value.items():
        yield _text(name, _NAME), _number(number)


def _read_evidence(entry: Any, reader: _Reader) -> Evidence | None:
    if entry is None:
        return None
    kind = EvidenceKind(entry["kind"])
    columns = entry["columns"]
    shape = tuple(entry["shape"])
    if not isinstance(columns, list) or len(columns) > _MOST_COLUMNS:
        raise ValueError
    if not all(type(size) is int and size >= 1 for size in shape):
        raise ValueError
    _check_shape(kind, shape, len(columns))
    dtype = _TYPES[entry["dtype"]]
    originals, made = reader.array(shape, dtype), reader.array(shape, dtype)
    right = reader.array(shape, np.dtype(np.uint8)) != 0 if entry["right"] is True else None
    names = tuple(_text(name, _NAME) for name in columns)
    return Evidence(kind, names, originals, made, right)


def _check_shape(kind: EvidenceKind, shape: tuple[int, ...], columns: int) -> None:
    if not 2 <= len(shape) <= 4 or shape[0] > MAX_SHOWN or math.prod(shape) > _MOST_NUMBERS:
        raise ValueError
    if kind is EvidenceKind.IMAGES:
        if len(shape) == 2 or (len(shape) == 4 and shape[1] not in (1, 3)):
            raise ValueError
        return
    named = kind in (EvidenceKind.ROWS, EvidenceKind.COUNTS)
    if len(shape) != 2 or (named and shape[1] != columns):
        raise ValueError


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError
    return printable(value, most)
