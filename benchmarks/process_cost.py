"""Read what processes have cost so far: CPU time by part, peak memory."""

from collections.abc import Mapping
from pathlib import Path

import psutil

AGGREGATOR = "aggregator"
PARTS = (AGGREGATOR, "daemon", "trainer")


def cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    """Return CPU seconds so far, user and system, by part.

    Args:
        pids: By the name that the consortium gave them: ``aggregator``, else a site's daemon.

    Returns:
        ``aggregator``; ``daemon``, the sum over sites; ``trainer``, all that daemons started.
    """
    spent = dict.fromkeys(PARTS, 0.0)
    for name, pid in pids.items():
        process = psutil.Process(pid)
        spent[AGGREGATOR if name == AGGREGATOR else "daemon"] += _own_s(process)
        for child in process.children(recursive=True):
            spent["trainer"] += _own_s(child)
    return spent


def peak_rss_bytes(pid: int) -> int:
    """Return the largest resident memory a process has had: ``VmHWM``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status shows no VmHWM: this benchmark needs Linux")


def forget_peak_rss(pid: int) -> None:
    """Begin the largest resident memory of a process anew, at what it holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _own_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
