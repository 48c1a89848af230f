"""Run an app's code in a process of its own, never beside the operator's keys."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from privacy.errors import UsageError

LIMIT_S = 600
_NOTHING: Mapping[str, str] = MappingProxyType({})


def run_app_program(
    program: Sequence[str],
    where: str,
    late: str,
    environment: Mapping[str, str] = _NOTHING,
    folder: Path | None = None,
) -> Mapping[str, Any]:
    """Run one of our modules that loads an app, and read the JSON that it ends with.

    Args:
        program: The module and its arguments.
        where: What a fault is about: the app's folder, or the file to write.
        late: What a user should know when it does not end within `LIMIT_S`.
        environment: What it needs besides ours.
        folder: Where relative paths that the app writes to end; ours by default.

    Raises:
        UsageError: It took too long, or says that the app is at fault: its last line.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own module, no shell parses the arguments
            # Safe path: a file of the folder we stand in must not pass for a module of ours.
            [sys.executable, "-P", "-B", "-m", *program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, **environment},
            cwd=folder,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{where}: no end within {LIMIT_S} s; {late}") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UsageError(f"{where}: {last[0]}")
    report: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report
