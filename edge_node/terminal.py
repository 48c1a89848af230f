"""Where this command line prints tables for people."""

import sys

from rich.console import Console

_WIDTH = 120  # of what is piped to a file; a terminal has its own


def table_console() -> Console:
    """Give standard output, wide enough for a table also where it is no terminal."""
    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal:
        return console
    return Console(file=sys.stdout, highlight=False, width=_WIDTH)
