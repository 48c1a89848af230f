"""The command ``tidegate``: global options, the commands, and how errors leave."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from aggregator.cli import demo, evaluation, jobs, models, setup, sites, statistics
from aggregator.cli.output import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, Session
from privacy.errors import PeerError, UsageError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one model with sites whose data stays where it is.",
)
app.add_typer(sites.app, name="site")
app.add_typer(setup.consortium_app, name="consortium")
app.add_typer(jobs.app, name="job")
app.add_typer(models.app, name="model")
app.add_typer(statistics.app, name="stats")
app.command()(setup.init)
app.command()(setup.up)
app.command()(demo.demo)
jobs.app.command()(evaluation.evaluate)


@app.callback()
def options(
    context: typer.Context,
    operator: Annotated[
        Path,
        typer.Option(
            envvar="TIDEGATE_OPERATOR", help="The operator folder that `tidegate init` made."
        ),
    ] = Path("operator"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs instead of tables.")
    ] = False,
) -> None:
    """Take the options that every command shares."""
    context.obj = Session(operator, as_json, Console())


def main() -> None:
    """Run the command line; an expected error is one line on stderr and an exit status."""
    try:
        app()
    except PeerError as error:
        _fail(str(error), EXIT_REFUSED)
    except UsageError as error:
        _fail(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        os._exit(EXIT_INTERRUPTED)
    except OSError as error:
        # A file or folder that the command line named; what is refused on purpose came above.
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}", EXIT_USAGE)


def _fail(message: str, status: int) -> None:
    sys.stderr.write(f"tidegate: {message}\n")
    raise SystemExit(status)
