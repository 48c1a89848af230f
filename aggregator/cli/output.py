"""How the command line speaks: tables for people, JSON for programs, one line for an error."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console, RenderableType
from rich.table import Table

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
        else:
            self.console.print(table)


def as_dict(message: Message) -> dict[str, Any]:
    """Return a message as JSON-able values, field names as in the wire contract."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Lay rows out under columns; a column whose name starts with ``#`` is right-aligned."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column[0] == "#" else "left")
    for row in rows:
        table.add_row(*row)
    return table


def moment(seconds: int) -> str:
    """Return a time of day for people, or a dash for never."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def data_size(count: float) -> str:
    """Return a number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
