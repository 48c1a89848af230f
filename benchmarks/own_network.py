"""A network of this benchmark's own: one namespace for the aggregator, one for each site.

``OwnNetwork.enter`` moves this process into a fresh network namespace, which has no way out, and
every process that it starts later with it. A site's namespace is held by one small process that
ends when its standard input does: whatever becomes of the benchmark, killed too, no namespace and
no device is left. Links are plain (``veth``, segmentation off, so that the interface's counters
are those of frames on a wire) or delayed (`benchmarks.delayed_link`). Needs root and iproute2.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aggregator.cli.consortium import Consortium

ADDRESS = "10.77.0.1"
"""Where the aggregator listens; every site's default route leads there."""

CONGESTION_CONTROLS = ("cubic", "reno")
"""In order of preference; a namespace may be allowed the second only. Never BBR: it paces."""

_CLONE_NEWNET = 0x40000000
_START_LIMIT_S = 10.0
_ETHERNET = 14
_SYSCTL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_DIAL = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"


@dataclass(frozen=True)
class Wire:
    """A site's line.

    Attributes:
        mbit_per_s: Each way.
        round_trip_ms: Half of it each way.
    """

    mbit_per_s: float
    round_trip_ms: float


@dataclass(frozen=True)
class Traffic:
    """Bytes that have crossed a site's interface: IP packets and Ethernet headers."""

    up: int
    down: int

    def __sub__(self, before: "Traffic") -> "Traffic":
        """Give what crossed it since."""
        return Traffic(self.up - before.up, self.down - before.down)


def is_possible() -> bool:
    """Say whether this process may make namespaces here."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare", "nsenter")))


@dataclass
class OwnNetwork:
    """The namespaces and links; make one by `own_network`."""

    congestion_control: str
    _held: ExitStack = field(default_factory=ExitStack, repr=False)
    _sites: dict[str, int] = field(default_factory=dict)

    def add_site(self, name: str, wire: Wire | None = None) -> None:
        """Make a site's namespace and its link; without a wire, one as fast as this machine."""
        index = len(self._sites) + 1
        pid = self._held.enter_context(_held_namespace())
        here, there, near, far = f"to{index}", "wan0", f"10.77.{index}.1", f"10.77.{index}.2"
        if wire is None:
            _ip(f"link add {here} type veth peer name {there} netns {pid}")
            _ip(f"link set {here} gso_max_segs 1")
            _ip(f"link set {there} gso_max_segs 1", pid)
        else:
            there = f"wan{index}"
            self._held.enter_context(_delayed_link(here, there, pid, wire))
        _ip(f"addr add {near} peer {far} dev {here}")
        _ip(f"link set {here} up")
        _ip("link set lo up", pid)
        _ip(f"addr add {far} peer {near} dev {there}", pid)
        _ip(f"link set {there} up", pid)
        _ip(f"route add default via {near} dev {there}", pid)
        dial = [sys.executable, "-c", _DIAL, str(_SYSCTL), self.congestion_control]
        subprocess.run([*_inside(pid), *dial], check=True)
        self._sites[name] = pid

    def remove_sites(self) -> None:
        """End all sites' namespaces and links."""
        self._sites.clear()
        self._held.close()

    def has(self, name: str) -> bool:
        """Say whether a site of this name was added."""
        return name in self._sites

    def inside(self, name: str) -> list[str]:
        """Give what to put before a program so that it runs in a site's namespace."""
        return _inside(self._sites[name])

    def traffic(self, name: str) -> Traffic:
        """Read a site's counters."""
        table = Path(f"/proc/{self._sites[name]}/net/dev").read_text().splitlines()
        for line in table:
            device, _, counters = line.partition(":")
            if device.strip().startswith("wan"):
                numbers = counters.split()
                return Traffic(up=int(numbers[8]), down=int(numbers[0]))
        raise RuntimeError(f"{name} has no line")


@dataclass
class NetworkedConsortium(Consortium):
    """A consortium whose sites run in namespaces of their own."""

    network: OwnNetwork | None = None
    host: str = ADDRESS

    def _start(self, name: str, program: list[str]) -> subprocess.Popen[bytes]:
        """Start a process; a site's, and its enrolment, in the site's namespace."""
        site = name.removeprefix("enrol ")
        if self.network is not None and self.network.has(site):
            program = [*self.network.inside(site), *program]
        return super()._start(name, program)


@contextmanager
def own_network() -> Iterator[OwnNetwork]:
    """Move this process, which must have no threads yet, into a network of its own for good.

    Raises:
        RuntimeError: This process may not, or a tool is missing.
    """
    if not is_possible():
        raise RuntimeError("a network of its own needs root, and ip, unshare and nsenter")
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise RuntimeError(f"no new network namespace: {os.strerror(ctypes.get_errno())}")
    _ip("link set lo up")
    _ip(f"addr add {ADDRESS} dev lo")
    network = OwnNetwork(_set_congestion_control())
    try:
        yield network
    finally:
        network.remove_sites()


def _set_congestion_control() -> str:
    for name in CONGESTION_CONTROLS:
        try:
            _SYSCTL.write_text(name)
        except OSError:
            continue
        return name
    raise RuntimeError(f"no congestion control of {', '.join(CONGESTION_CONTROLS)} is allowed here")


@contextmanager
def _held_namespace() -> Iterator[int]:
    """Start the process that holds a namespace; yields its id."""
    program = ["unshare", "--net", "cat"]
    # No inherited descriptor may keep the pipe open, or the holder would outlive us.
    holder = subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True)
    try:
        _wait(lambda: _namespace_of(holder.pid) != _namespace_of(os.getpid()), "a namespace")
        yield holder.pid
    finally:
        holder.communicate()


@contextmanager
def _delayed_link(here: str, there: str, pid: int, wire: Wire) -> Iterator[None]:
    numbers = [str(pid), str(wire.mbit_per_s), str(wire.round_trip_ms / 2)]
    program = [sys.executable, "-m", "benchmarks.delayed_link", here, there, *numbers]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True)
    try:
        if process.stdout is None or process.stdout.readline() != b"up\n":
            raise RuntimeError("a delayed link did not come up")
        yield
    finally:
        process.terminate()
        process.communicate()


def _ip(command: str, pid: int | None = None) -> None:
    prefix = [] if pid is None else _inside(pid)
    subprocess.run([*prefix, "ip", *command.split()], check=True)


def _inside(pid: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]


def _namespace_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def _wait(ready: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _START_LIMIT_S
    while not ready():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {_START_LIMIT_S:.0f} s for {what}")
        time.sleep(0.01)
