"""Print what the DP audit found: one table of claims, one of mutants, one line of verdict."""

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from edge_node.audit.dp import DpReport

_WIDTH = 100  # of what is piped to a file; a terminal has its own


def print_report(report: DpReport) -> None:
    """Print a report to standard output."""
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=_WIDTH)
    console.print(_findings(report))
    console.print(_mutants(report))
    console.print(verdict(report), highlight=False)


def verdict(report: DpReport) -> str:
    """Say in one line whether the audit passed, and how sure that is."""
    failed = sum(not finding.passed for finding in report.findings)
    missed = sum(not caught.checks for caught in report.mutants)
    chance = f"a correct pipeline fails here with a chance below {report.false_alarm:.0e}"
    if report.passed:
        return (
            f"PASS: {len(report.findings)} claims held, {len(report.mutants)} of"
            f" {len(report.mutants)} broken pipelines noticed; {chance}"
        )
    return f"FAIL: {failed} claims did not hold, {missed} broken pipelines went unnoticed; {chance}"


def _findings(report: DpReport) -> Table:
    table = Table(title="The pipeline as it is", title_justify="left", box=SIMPLE_HEAD)
    for name in ("check", "subject", "claim", "measured", "verdict"):
        table.add_column(name, overflow="fold", no_wrap=name == "verdict")
    last = ""
    for finding in report.findings:
        shown = finding.check if finding.check != last else ""
        last = finding.check
        word = "[green]held[/]" if finding.passed else "[bold red]FAILED[/]"
        table.add_row(shown, finding.subject, finding.claim, finding.measured, word)
    return table


def _mutants(report: DpReport) -> Table:
    title = "Pipelines broken on purpose"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("mutant", "fault", "noticed by"):
        table.add_column(name, overflow="fold")
    for caught in report.mutants:
        by = ", ".join(caught.checks) or "[bold red]NOTHING[/]"
        table.add_row(caught.mutant, caught.fault, by)
    return table
