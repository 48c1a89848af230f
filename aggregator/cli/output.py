"""How the command line speaks: tables for people, JSON for programs, one line for an error."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from aggregator.cli.connection import OperatorFolder

EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130


@dataclass
class Session:
    """What the global options chose."""

    operator: Path
    as_json: bool
    console: Console

    def folder(self) -> OperatorFolder:
        """Load the operator folder that ``--operator`` names."""
        return OperatorFolder.load(self.operator)

    def show(self, data: object, table: RenderableType) -> None:
        """Print the data as JSON where ``--json`` was given, else the table or sentence."""
        if self.as_json:
            sys.stdout.write(json.dumps(data, indent=2, sort_keys=True) + "\n")
        elif isinstance(table, str):
            # Never wrapped or marked up: a digest or a path must be fit to copy.
            self.console.print(table, soft_wrap=True, markup=False, highlight=False)
        else:
            self.console.print(table)


def as_dict(value: Any) -> dict[str, Any]:
    """Return a checked value of the operator API as JSON-able fields; bytes become hex."""
    return {name: _plain(field) for name, field in asdict(value).items()}


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    """Lay rows out under columns; a column whose name starts with ``#`` is right-aligned.

    The first column names the row and is never cut: it is what other commands ask for.
    """
    table = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for number, column in enumerate(columns):
        justify: JustifyMethod = "right" if column[0] == "#" else "left"
        table.add_column(column.lstrip("#"), justify=justify, no_wrap=number == 0, overflow="fold")
    for row in rows:
        # As text, not as rich's markup: what a site wrote must neither style nor break the table.
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def moment(seconds: int) -> str:
    """Return a time in UTC for people, who say so beside it, or a dash for never."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) if seconds else "-"


def data_size(count: float) -> str:
    """Return a number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: _plain(field) for name, field in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
