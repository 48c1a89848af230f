"""Read TOML strictly: unknown keys are refused by name, every value has a kind and a range.

A mistyped key that is silently ignored can switch a protection off, so it stops the reading and the
closest known key is named. Each message says where the value stands and what it may be.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from privacy.errors import UsageError

_MISSING = object()


@dataclass(frozen=True)
class Span:
    """The numbers a key may have. A ``low`` that is ``open_low`` is itself not allowed."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        """Say whether a number lies in the span; NaN never does."""
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"greater than {self.low:g}" if self.open_low else f"at least {self.low:g}"
        high = f"less than {self.high:g}" if self.open_high else f"at most {self.high:g}"
        return f"{low} and {high}"


@dataclass(frozen=True)
class Table:
    """One TOML table whose keys have been checked against those it may have.

    ``where`` is the file and table for messages, for example ``job.toml: [privacy]``.
    """

    fields: dict[str, object] = field(repr=False)
    where: str

    @classmethod
    def parse(
        cls, raw: bytes, name: str, keys: Collection[str], max_bytes: int = 65_536
    ) -> "Table":
        """Read a whole TOML file.

        Args:
            raw: The file, UTF-8.
            name: What to call it in messages: its path or ``job.toml``.
            keys: The keys and tables of its top level.
            max_bytes: The longest file to read.

        Raises:
            UsageError: Too long, no UTF-8, no TOML, or an unknown key.
        """
        if len(raw) > max_bytes:
            raise UsageError(f"{name}: more than {max_bytes} bytes; shorten it")
        try:
            fields = tomllib.loads(raw.decode())
        except UnicodeDecodeError:
            raise UsageError(f"{name}: is not UTF-8; save it as UTF-8") from None
        except RecursionError:
            raise UsageError(f"{name}: is nested too deeply") from None
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{name}: is not valid TOML: {error}") from None
        return cls._checked(fields, f"{name}:", keys)

    @classmethod
    def _checked(cls, fields: object, where: str, keys: Collection[str]) -> "Table":
        if not isinstance(fields, dict):
            raise UsageError(f"{where} must be a table")
        for key in fields:
            if key not in keys:
                near = difflib.get_close_matches(key, list(keys), n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(keys)}"
                raise UsageError(f"{where} unknown key {key[:60]!r}; {hint}")
        return cls(fields, where)

    def has(self, key: str) -> bool:
        """Say whether the key is present."""
        return key in self.fields

    def table(self, key: str, keys: Collection[str]) -> "Table":
        """Return a sub-table; an absent one is empty, so its own keys say what is missing."""
        return self._checked(self.fields.get(key, {}), self._sub(f"[{key}]"), keys)

    def tables(self, key: str, keys: Collection[str], most: int) -> list["Table"]:
        """Return an array of tables, ``[[key]]``, of at most ``most``."""
        entries = self.fields.get(key, [])
        where = self._sub(f"[[{key}]]")
        if not isinstance(entries, list) or len(entries) > most:
            raise UsageError(f"{where} must be an array of at most {most} tables")
        return [
            self._checked(entry, f"{where} number {number}", keys)
            for number, entry in enumerate(entries, start=1)
        ]

    def text(
        self, key: str, pattern: re.Pattern[str], rule: str, default: object = _MISSING
    ) -> str:
        """Return a string that a pattern matches whole; ``rule`` says the pattern in words."""
        value = self._take(key, default)
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise self.bad(key, f"must be {rule}")
        return value

    def choice(self, key: str, options: Sequence[str], default: object = _MISSING) -> str:
        """Return a string that is one of the options."""
        value = self._take(key, default)
        if value not in options or not isinstance(value, str):
            near = difflib.get_close_matches(str(value), options, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self.bad(key, f"must be one of {', '.join(options)}{hint}")
        return value

    def number(self, key: str, span: Span, default: object = _MISSING) -> float:
        """Return a finite number of the span."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(key, "must be a number")
        if not math.isfinite(value) or not span.holds(value):
            raise self.bad(key, f"must be {span}")
        return float(value)

    def whole(self, key: str, span: Span, default: object = _MISSING) -> int:
        """Return a whole number of the span."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(key, "must be a whole number")
        if not span.holds(value):
            raise self.bad(key, f"must be {span}")
        return value

    def wholes(self, key: str, span: Span, most: int) -> list[int]:
        """Return an array of whole numbers of the span; an absent one is empty."""
        value: Any = self.fields.get(key, [])
        kinds = isinstance(value, list) and all(type(entry) is int for entry in value)
        if not kinds or len(value) > most or not all(span.holds(entry) for entry in value):
            raise self.bad(key, f"must be an array of at most {most} whole numbers, each {span}")
        return list(value)

    def numbers(self, key: str, span: Span, most: int) -> list[float]:
        """Return an array of finite numbers of the span; an absent one is empty."""
        value: Any = self.fields.get(key, [])
        kinds = isinstance(value, list) and all(type(entry) in (int, float) for entry in value)
        if not kinds or len(value) > most or not all(span.holds(entry) for entry in value):
            raise self.bad(key, f"must be an array of at most {most} numbers, each {span}")
        return [float(entry) for entry in value]

    def texts(self, key: str, pattern: re.Pattern[str], rule: str, most: int) -> list[str]:
        """Return an array of strings that a pattern matches whole; an absent one is empty."""
        value: Any = self.fields.get(key, [])
        kinds = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        if not kinds or len(value) > most or not all(pattern.fullmatch(entry) for entry in value):
            raise self.bad(key, f"must be an array of at most {most} strings, each {rule}")
        return list(value)

    def flag(self, key: str, default: object = _MISSING) -> bool:
        """Return true or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, "must be true or false")
        return value

    def bad(self, key: str, rule: str) -> UsageError:
        """Return the error for a key whose value breaks a rule."""
        if key not in self.fields:
            return UsageError(f"{self.where} {key} {rule}")
        shown = repr(self.fields[key])[:60]
        return UsageError(f"{self.where} {key} = {shown}, but it {rule}")

    def _take(self, key: str, default: object) -> object:
        value = self.fields.get(key, default)
        if value is _MISSING:
            raise UsageError(f"{self.where} {key} is missing; add it")
        return value

    def _sub(self, name: str) -> str:
        return f"{self.where} {name}" if self.where.endswith(":") else f"{self.where}{name}"
