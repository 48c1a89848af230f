"""Print what the DP audit found: a table of claims, one of broken pipelines, a line of verdict."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from edge_node.audit.dp import DpReport
from edge_node.audit.finding import Finding
from edge_node.terminal import table_console

_HELD = "[green]held[/]"
_FAILED = "[bold red]FAILED[/]"


def print_report(report: DpReport) -> None:
    """Print a report to standard output."""
    console = table_console()
    console.print(_findings(report))
    console.print(_mutants(report))
    console.print(verdict(report))


def verdict(report: DpReport) -> str:
    """Say in one line whether the audit passed, and how sure that is."""
    failed = sum(not finding.passed for finding in report.findings)
    missed = sum(not caught.checks for caught in report.mutants)
    chance = f"a correct pipeline fails one with a chance below {report.false_alarm:.1e}"
    if report.passed:
        return (
            f"PASS: {len(report.findings)} claims held ({chance});"
            f" all {len(report.mutants)} broken pipelines were noticed"
        )
    return (
        f"FAIL: {failed} of {len(report.findings)} claims did not hold ({chance});"
        f" {missed} of {len(report.mutants)} broken pipelines went unnoticed"
    )


def _findings(report: DpReport) -> Table:
    title = f"The pipeline as it is: d = {report.coordinates}, m = {report.canaries} canaries"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("subject", "claim", "measured", "verdict"):
        table.add_column(name, overflow="fold", no_wrap=name == "verdict")
    by_check: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_check.setdefault(finding.check, []).append(finding)
    for check, findings in by_check.items():
        table.add_row(f"[bold]{check}[/]")
        for finding in findings:
            word = _HELD if finding.passed else _FAILED
            table.add_row(f"  {finding.subject}", finding.claim, finding.measured, word)
        table.add_section()
    return table


def _mutants(report: DpReport) -> Table:
    title = "Pipelines broken on purpose"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("mutant", "fault", "noticed by"):
        table.add_column(name, overflow="fold", no_wrap=name == "mutant")
    for caught in report.mutants:
        by = ", ".join(caught.checks) or "[bold red]NOTHING[/]"
        table.add_row(caught.mutant, caught.fault, by)
    return table
