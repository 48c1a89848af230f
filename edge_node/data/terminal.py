"""Print what a check of the data sets found."""

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edge_node.data.overview import CheckedDataset

_MOST_COLUMNS = 200


def print_checked(found: list[CheckedDataset]) -> None:
    """Print the data sets, one table each, and what does not fit below it."""
    console = Console(file=sys.stdout, highlight=False)
    for number, checked in enumerate(found):
        if number:
            console.print()
        if checked.failure:
            console.print(f"[bold]{checked.name}[/bold] [red]cannot be opened[/red]")
            console.print(f"  {escape(checked.failure)}", soft_wrap=True)
        else:
            _print_one(console, checked)


def _print_one(console: Console, checked: CheckedDataset) -> None:
    console.print(_table(checked))
    if len(checked.facts) > _MOST_COLUMNS:
        console.print(f"... and {len(checked.facts) - _MOST_COLUMNS} columns more")
    for name, count in (checked.users or {}).items():
        console.print(f"users: {escape(name)}, {count} of them")
    if checked.left_out:
        parts = [f"{escape(name)} ({kind})" for name, kind in checked.left_out.items()]
        console.print(f"left out: {', '.join(parts[:_MOST_COLUMNS])}")
    console.print(f"fingerprint {checked.fingerprint[:16]} (stays here)", style="dim")
    if checked.changed_since:
        console.print(
            f"[yellow]changed[/yellow] since {checked.changed_since}; the budget goes on under"
            f" {checked.dataset_id}"
        )
    for name, share in (checked.outside or {}).items():
        console.print(f"[yellow]outside the job's bounds[/yellow]: {escape(name)} {share:.2%}")
    for mismatch in checked.mismatches:
        console.print(f"[red]does not fit[/red]: {escape(mismatch)}", soft_wrap=True)
    if checked.outside is not None and not checked.mismatches:
        console.print("[green]fits the job's columns[/green]")


def _table(checked: CheckedDataset) -> Table:
    title = f"{checked.name}: {checked.rows} rows, charged to {checked.dataset_id}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("column", overflow="fold")
    for name in ("kind", "low", "high", "missing"):
        table.add_column(name, justify="right" if name != "kind" else "left")
    for facts in checked.facts[:_MOST_COLUMNS]:
        shape = "x".join(map(str, facts["shape"]))
        table.add_row(
            escape(facts["column"]),
            f"{facts['kind']} {shape}".strip(),
            *("-" if facts[end] is None else f"{facts[end]:.6g}" for end in ("low", "high")),
            f"{facts['missing']:.2%}" + (" +inf" if facts["infinite"] else ""),
        )
    return table
