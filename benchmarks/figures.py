"""Show a benchmark's figures as a table, and write them with the machine they came from.

A figure without its machine says nothing: every JSON file names processor, cores, and how busy the
machine was with other work.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

FSYNC_WRITES = 100
_BLOCK = bytes(4096)


def machine() -> dict[str, Any]:
    """Describe this machine: processor, usable cores, load, Python."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def fsync_ms(folder: Path, writes: int = FSYNC_WRITES) -> float:
    """Measure the disk: median milliseconds of appending 4 KiB to a file and ``fsync``."""
    path = folder / "fsync-probe"
    times_s = []
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(writes):
                file.write(_BLOCK)
                begin_s = time.perf_counter()
                os.fsync(file.fileno())
                times_s.append(time.perf_counter() - begin_s)
    finally:
        path.unlink(missing_ok=True)
    return 1000 * statistics.median(times_s)


def median_s(work: Callable[[], object], repeats: int) -> float:
    """Run work once to warm up, then several times; return the median seconds of one run."""
    work()
    times_s = []
    for _ in range(repeats):
        begin_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begin_s)
    return statistics.median(times_s)


def write_json(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write a result with its machine; nothing without a path."""
    if path is not None:
        text = json.dumps({**result, "machine": machine()}, indent=2, sort_keys=True)
        path.write_text(text + "\n")


def console() -> Console:
    """Return where tables go: standard output, wide enough to be kept whole in a log."""
    out = Console()
    return out if out.is_terminal else Console(width=140)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
