"""Find, measure and end a peer's processes: they alone carry a folder's name in their environment.

Peers detach processes into sessions of their own, so neither a process group nor a parent's id
finds them all; the environment, which every child inherits, does.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import psutil

from benchmarks.process_cost import peak_rss_bytes

TAG = "TIDEGATE_BENCHMARK_PEER"
SAMPLE_EVERY_S = 0.2
STOP_LIMIT_S = 10.0


def carrying(tag: str) -> list[psutil.Process]:
    """Return the processes whose environment holds the tag."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TAG) == tag:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_all(tag: str) -> None:
    """End every process that carries the tag, and those that they start meanwhile."""
    for found in carrying(tag):
        _quietly(found.terminate)
    psutil.wait_procs(carrying(tag), timeout=STOP_LIMIT_S)
    for left in carrying(tag):
        _quietly(left.kill)


@dataclass
class PeakMemory:
    """Watch the peak resident memory of a peer's parts while it works; a context.

    Attributes:
        roles: By part: a word of the command line of its processes.
        peaks: By part: the largest ``VmHWM`` of one of its processes, bytes.
    """

    tag: str
    roles: Mapping[str, str]
    peaks: dict[str, int] = field(default_factory=dict)
    _done: threading.Event = field(default_factory=threading.Event, repr=False)
    _thread: threading.Thread | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True, name="peak memory")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_EVERY_S):
            for process in carrying(self.tag):
                self._look_at(process)

    def _look_at(self, process: psutil.Process) -> None:
        try:
            line = " ".join(process.cmdline())
            role = next((role for role, word in self.roles.items() if word in line), None)
            if role is not None:
                peak = peak_rss_bytes(process.pid)
                self.peaks[role] = max(self.peaks.get(role, 0), peak)
        except (psutil.Error, OSError, RuntimeError):
            return  # it has ended meanwhile


@dataclass(frozen=True)
class PeerRounds:
    """What a run of a peer took.

    Attributes:
        rounds_s: Of each round, in order; the first pays for starting the clients.
        aggregator_rss: Peak resident bytes by part of its aggregator.
    """

    rounds_s: list[float]
    aggregator_rss: dict[str, int]


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except psutil.NoSuchProcess:
        return
