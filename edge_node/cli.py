# ruff: noqa: PLC0415 - commands import what they need, so that --help is quick
"""The `edge-node` command: enrol a site, run it, show what it spent and how it is set, audit it.

Exit codes: 0 done, 2 a mistake in use or configuration, 3 the other side refused, 4 a leakage audit
says WARN, 5 it says FAIL, 1 anything else.
What is heavy (grpc, torch's libraries) is imported only where a command needs it.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from privacy.errors import PeerError, UsageError

_USAGE_EXIT = 2
_REFUSED_EXIT = 3

app = typer.Typer(
    name="edge-node",
    help="Train on this site's own data and send only masked, noised sums.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

data_commands = typer.Typer(no_args_is_help=True, help="Look at this site's data sets.")
app.add_typer(data_commands, name="data")
budget_commands = typer.Typer()
app.add_typer(budget_commands, name="budget")

audit_commands = typer.Typer(
    no_args_is_help=True, help="Hold this installation's privacy against what it claims."
)
app.add_typer(audit_commands, name="audit")

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The site's settings (site.toml).", dir_okay=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def enrol(
    config: ConfigOption,
    token_file: Annotated[
        Path, typer.Option("--token-file", help="The operator's token, in a file of mode 0600.")
    ],
) -> None:
    """Make this site's keys and have them certified, with the operator's one-time token."""
    with _errors():
        from edge_node.config import load_config
        from edge_node.enrol import enrol as redeem
        from edge_node.policy_file import policy_of
        from tidegate.keys import read_private

        settings = load_config(config)
        policy = policy_of(settings)  # what `run` would refuse, before the token is used up
        token = read_private(token_file).decode("ascii", "replace")
        credentials = redeem(settings, token)
        typer.echo(
            f"site {settings.site_id} is enrolled; signing key"
            f" {credentials.signer.fingerprint.hex()[:16]}; now: edge-node run --config {config}"
        )
        if policy.closed:
            _say(f"warning: {policy.closed}")


@app.command()
def run(config: ConfigOption) -> None:
    """Run the edge node until it is told to stop (Ctrl-C or SIGTERM)."""
    with _errors():
        from edge_node.service import serve

        serve(config)
        # All is closed and on disk. What is left is gRPC's own teardown, which takes seconds.
        sys.stderr.flush()
        os._exit(0)


@budget_commands.callback(invoke_without_command=True)
def budget(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The site's settings (site.toml).", dir_okay=False),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show what each data set's privacy budget has spent and left, from the verified ledger."""
    if context.invoked_subcommand is not None:
        return
    with _errors():
        if config is None:
            raise UsageError("edge-node budget needs --config: the site's settings (site.toml)")
        from edge_node.budget import budget_lines
        from edge_node.budget_terminal import print_budgets
        from edge_node.config import load_config
        from edge_node.store_schema import connect, read_ledgers

        settings = load_config(config)
        database = connect(settings.database, read_only=True)
        try:
            lines = budget_lines(settings.site_id, read_ledgers(database))
        finally:
            database.close()
        if as_json:
            _print_json([dataclasses.asdict(line) for line in lines])
        else:
            print_budgets(lines)


@budget_commands.command("plan")
def budget_plan(
    config: ConfigOption,
    job: Annotated[
        str,
        typer.Option("--job", help="A job file, an app folder, or the id of a job offered here."),
    ],
    parameters: Annotated[
        int | None,
        typer.Option(
            help="Trainable parameters of the model, as `tidegate job check` prints them;"
            " without it an allowed app is asked, confined."
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Say what a job would cost before it is accepted, and whether it would be; changes nothing.

    Works beside a running edge node. Exit code 3 says that the job would be refused.
    """
    with _errors():
        from edge_node.config import load_config
        from edge_node.forecast_terminal import print_forecast
        from edge_node.planned_job import plan_budget

        shown = plan_budget(load_config(config), job, parameters)
        if as_json:
            _print_json({**dataclasses.asdict(shown), "accepted": shown.is_accepted})
        else:
            print_forecast(shown)
        if not shown.is_accepted:
            raise typer.Exit(_REFUSED_EXIT)


@data_commands.command("check")
def data_check(
    config: ConfigOption,
    name: Annotated[
        str | None, typer.Argument(help="The data set; without it, the job's, or all of them.")
    ] = None,
    *,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="A job (job.toml) to hold it against.", dir_okay=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Open data sets, show their columns, and hold them against a job's; nothing leaves."""
    with _errors():
        from edge_node.config import load_config
        from edge_node.data.overview import check_datasets
        from edge_node.data.terminal import print_checked
        from tidegate.jobfile import JobFile

        job_file = JobFile.parse(_read(schema), str(schema)) if schema is not None else None
        found = check_datasets(load_config(config), name, job_file)
        if as_json:
            _print_json([dataclasses.asdict(checked) for checked in found])
        else:
            print_checked(found)
        if not all(checked.is_good for checked in found):
            raise typer.Exit(_USAGE_EXIT)


@audit_commands.command("dp")
def audit_dp(
    seed: Annotated[
        int | None, typer.Option("--seed", help="Repeat a run; without it the system's randomness.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the findings here too.", dir_okay=False)
    ] = None,
    *,
    short: Annotated[
        bool, typer.Option("--short", help="Half a minute instead of two; sees coarse faults only.")
    ] = False,
) -> None:
    """Audit differential privacy: attack the real pipeline, then see that faults are noticed.

    Needs no settings and touches no data. Exit code 0 only if every claim held and every
    deliberately broken pipeline was noticed; else 1.
    """
    with _errors():
        from edge_node.audit import dp, terminal
        from edge_node.audit.setting import Setting

        setting_of = Setting.short if short else Setting.whole
        report = dp.audit_dp(seed, setting_of, progress=lambda what: _say(f"auditing {what}"))
        if json_file is not None:
            _write_json(json_file, {"passed": report.passed} | dataclasses.asdict(report))
        terminal.print_report(report)
        if not report.passed:
            raise typer.Exit(1)


@audit_commands.command("leakage")
def audit_leakage(
    config: ConfigOption,
    job: Annotated[
        str, typer.Option("--job", help="A folder with job.toml, a job file, or an offered job.")
    ],
    dataset: Annotated[
        str, typer.Option("--dataset", help="The data set; without it, the job's.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the report (HTML) here.", dir_okay=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Repeat an audit.", min=0, max=2**48 - 1)
    ] = None,
    private_records: Annotated[
        int,
        typer.Option(
            "--private-records",
            min=0,
            help="Attack this many of the site's own records; nothing of it is kept.",
        ),
    ] = 0,
    *,
    as_json: JsonOption = False,
) -> None:
    """Attack a job on made-up records, by what it would send, and show what the attacks got.

    The verdict is kept for the policy's require_leakage_audit. Exit code 0 PASS, 4 WARN, 5 FAIL.
    """
    with _errors():
        from edge_node.leakage import command
        from edge_node.leakage.terminal import print_audit

        request = command.AuditRequest(job, dataset, out, seed, private_records)
        audited, shown = command.audit(config, request, progress=_say)
        if as_json:
            _print_json(shown)
        else:
            print_audit(audited)
        raise typer.Exit(command.EXIT_CODES[audited.report.verdict])


@audit_commands.command("list")
def audit_list(config: ConfigOption, *, as_json: JsonOption = False) -> None:
    """Show the leakage audits that this site keeps, and which of them let a job pass."""
    with _errors():
        import time

        from edge_node.leakage import command
        from edge_node.leakage.terminal import print_records

        found, policy = command.records(config)
        if as_json:
            _print_json(command.plain_records(found, policy))
        else:
            print_records(found, policy, time.time())


@app.command("show-config")
def show_config(config: ConfigOption, *, as_json: JsonOption = False) -> None:
    """Show the settings and the policy in force, and how well the trainer can be confined here."""
    with _errors():
        from edge_node.overview import overview

        shown = overview(config)
        if as_json:
            _print_json(shown)
        else:
            _print_tree(shown)


@app.command()
def reconcile(
    config: ConfigOption,
    *,
    accept: Annotated[
        bool, typer.Option("--accept", help="Do it; without this, only say what would be done.")
    ] = False,
) -> None:
    """Accept a database that is older than its mirror, after a restore from backup.

    Charges that the backup may have lost are charged again at the price of the dearest known one,
    and all one-time keys are void.
    """
    with _errors():
        from edge_node.config import load_config
        from edge_node.reconcile import reconcile as mend

        for line in mend(load_config(config), accept=accept):
            typer.echo(line)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Say an expected error in one line and exit with its code."""
    try:
        yield
    except UsageError as error:
        _fail(str(error), _USAGE_EXIT)
    except PeerError as error:
        _fail(str(error), _REFUSED_EXIT)
    except KeyboardInterrupt:
        _fail("stopped", 1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _write_json(path: Path, value: object) -> None:
    try:
        path.write_text(_as_json(value) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _say(line: str) -> None:
    """Tell how far a command is, apart from what it prints in the end."""
    typer.echo(f"edge-node: {line}", err=True)


def _fail(message: str, code: int) -> None:
    typer.echo(f"edge-node: {message}", err=True)
    raise typer.Exit(code)


def _print_json(value: object) -> None:
    typer.echo(_as_json(value))


def _as_json(value: object) -> str:
    """Write JSON; an infinite epsilon becomes null, which JSON can say."""
    return json.dumps(_finite(value), indent=2, sort_keys=True, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _print_tree(shown: dict[str, Any], indent: str = "") -> None:
    for key, value in shown.items():
        if isinstance(value, dict) and value:
            typer.echo(f"{indent}{key}:")
            _print_tree(value, indent + "  ")
        else:
            typer.echo(f"{indent}{key}: {value if value not in ({}, [], ()) else '-'}")
