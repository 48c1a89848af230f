"""Start a process that will confine itself: one socket, one shared file, one lifeline.

The process ends when whoever started it lets go of the lifeline, for whatever reason: its
supervisor (see `tidegate.confine.sandbox`) watches the other end.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class ConfinedProcess:
    """A started process and what holds it.

    Attributes:
        process: Its supervisor.
        connection: Our end of a socket that keeps frames apart.
        lifeline: Closing it ends the process and all that it started.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket
    lifeline: BinaryIO

    def let_go(self) -> None:
        """Close both ends; the process ends soon after."""
        self.connection.close()
        self.lifeline.close()


def start_confined(
    module: str,
    memory_fd: int,
    threads: int,
    output: int,
    environment: Mapping[str, str] = _NOTHING,
) -> ConfinedProcess:
    """Start ``python -m module SOCKET MEMORY LIFELINE`` with an environment of its own.

    Args:
        module: One of ours, which calls `tidegate.confine.sandbox.enter` first of all.
        memory_fd: The shared file; the caller closes its own descriptor.
        threads: Threads that numeric libraries compute with.
        output: Descriptor that it prints to, or ``subprocess.DEVNULL``.
        environment: What it needs besides; nothing of our own environment reaches it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read_end, write_end = os.pipe()
    descriptors = (theirs.fileno(), memory_fd, read_end)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own module, descriptor numbers as arguments
            [sys.executable, *_program(module), *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            env={**environment, **_environment(threads)},
            cwd="/",
            start_new_session=True,  # Ctrl-C at the terminal is for whoever started it to handle
        )
    except OSError:
        ours.close()
        os.close(write_end)
        raise
    finally:
        theirs.close()
        os.close(read_end)
    return ConfinedProcess(process, ours, os.fdopen(write_end, "wb", buffering=0))


def _program(module: str) -> tuple[str, ...]:
    return ("-I", "-B", "-u", "-m", module)


def _environment(threads: int) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",  # noqa: S108 - the sandbox has its own
        "TMPDIR": "/tmp",  # noqa: S108
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "MALLOC_ARENA_MAX": "2",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
