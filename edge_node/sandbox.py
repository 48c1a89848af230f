"""Name what a site's trainer process is kept from, and which protections are in force."""

from dataclasses import asdict, dataclass
from enum import StrEnum


class SandboxMode(StrEnum):
    """How a site wants its trainer confined: the words of its configuration."""

    REQUIRED = "required"
    BEST_AVAILABLE = "best-available"


@dataclass(frozen=True)
class SandboxReport:
    """Which protections hold for a trainer process, for logs and ``edge-node show-config``.

    Attributes:
        network: No socket can be made, or none leads anywhere.
        filesystem: Only the interpreter, Tidegate and the app are in sight, all read-only.
        process: No other process can be seen or signalled, and none can be started.
        memory: What it may allocate is bounded.
        syscalls: A filter refuses system calls that training has no use for.
        notes: Why a protection is missing, one sentence each; safe to log.
    """

    network: bool
    filesystem: bool
    process: bool
    memory: bool
    syscalls: bool
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the names of the protections that are not in force."""
        return tuple(name for name, held in asdict(self).items() if held is False)


async def probe_sandbox() -> SandboxReport:
    """Enter the sandbox in a process of its own and say what holds on this machine."""
    raise NotImplementedError
