"""Start, hear and end the process of a job's ServerApp (aggregator side; on the job's thread)."""

import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.server_app.frames import MEMORY, REFUSED, SANDBOX, Start, encode_start
from aggregator.server_app.memory import ModelMemory
from privacy.errors import UsageError
from tidegate.confine.frames import MAX_FRAME_BYTES, decode, encode
from tidegate.confine.start import start_confined

_MODULE = "aggregator.server_app.process"
_LOOK_MS = 100
_LOG_BYTES = 1 << 20
_END_WITHIN_S = 2.0


class ServerAppChild:
    """A running process.

    Attributes:
        memory: What is shared with it.
    """

    def __init__(self, start: Start, spec: bytes, log_path: Path) -> None:
        """Start the process; it then confines itself and runs the app's main.

        Args:
            start: What it is told first.
            spec: Canonical bytes of the vector spec.
            log_path: Where what the app prints goes.
        """
        self._memory_mib = start.memory_mib
        self._log = _Log(log_path)
        layout = ModelMemory(len(spec), start.model_length)
        memory_fd = layout.create()
        try:
            self.memory = layout.attach(memory_fd)
            self.memory.spec[:] = np.frombuffer(spec, np.uint8)
            output = self._log.write_end
            self._confined = start_confined(_MODULE, memory_fd, start.threads, output)
        finally:
            self._log.close_write_end()
            os.close(memory_fd)
        self._connection = self._confined.connection
        self._process = self._confined.process
        self._connection.send(encode_start(start))

    def send(self, frame: dict[str, Any]) -> None:
        """Answer; a process that has ended is noticed by ``receive``."""
        try:
            self._connection.send(encode(frame))
        except OSError:
            return

    def receive(self, within_s: float, check: Callable[[], None]) -> dict[str, Any]:
        """Wait for the next frame that is not a failure.

        Args:
            within_s: How long main may compute.
            check: Called now and then; raises where the job is given up meanwhile.

        Raises:
            UsageError: It failed, was refused, ended, or took too long; or this machine lacks a
                protection that is required.
            PeerError: MALFORMED: it broke the protocol.
        """
        late_s = time.monotonic() + within_s
        while not self._heard():
            check()
            if time.monotonic() > late_s:
                raise _failed(
                    f"main computed for more than {within_s:g} s without an exchange; raise"
                    " [server_app] time_limit_s in aggregator.toml if it needs longer"
                )
        try:
            raw = self._connection.recv(MAX_FRAME_BYTES)
        except OSError:
            raw = b""
        if not raw:
            raise self._ended()
        frame = decode(raw)
        if "failed" in frame:
            raise self._failure(frame)
        return frame

    def _heard(self) -> bool:
        """Wait a moment for a frame, and keep what was printed meanwhile."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        if not self._log.ended:
            poll.register(self._log.read_end, select.POLLIN)
        heard = [descriptor for descriptor, _ in poll.poll(_LOOK_MS)]
        if self._log.read_end in heard:
            self._log.take()
        return self._connection.fileno() in heard

    def end(self) -> int:
        """End the process and all it started, and give its exit status.

        One that a signal ended has status 128 plus the signal's number.
        """
        self._confined.let_go()
        try:
            return self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:  # it hangs before the sandbox: in an import, say
            self._process.kill()
            return self._process.wait()
        finally:
            self._log.close()

    def _failure(self, frame: dict[str, Any]) -> UsageError:
        detail = str(frame.get("detail", ""))[:1000]
        match frame["failed"]:
            case kind if kind == SANDBOX:
                return UsageError(
                    f"the ServerApp's sandbox is required and this machine cannot give all of it:"
                    f" {detail}; mend that, or set [server_app] sandbox to 'best-available'"
                )
            case kind if kind == MEMORY:
                return _failed(
                    f"it exceeded [server_app] memory_mib = {self._memory_mib}: {detail}"
                )
            case kind if kind == REFUSED:
                return UsageError(detail)
            case _:
                return _failed(f"main raised {detail}")

    def _ended(self) -> UsageError:
        status = self.end()
        if status == 128 + 9:
            return _failed("its process was killed, as the kernel does when memory runs out")
        return _failed(f"its process ended unexpectedly with status {status}")


def _failed(what: str) -> UsageError:
    return UsageError(f"the ServerApp failed: {what}")


class _Log:
    """Keeps what the process prints, up to a bound; the rest is read and dropped."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._room = _LOG_BYTES
        self.ended = False

    def close_write_end(self) -> None:
        """Leave the writing to the process."""
        os.close(self.write_end)

    def take(self) -> None:
        """Read what there is."""
        try:
            printed = os.read(self.read_end, 1 << 16)
        except BlockingIOError:
            return
        self.ended = not printed
        kept = printed[: self._room]
        self._room -= len(kept)
        os.write(self._file, kept)

    def close(self) -> None:
        """Take the last words of a process that has ended, and close; may be called again."""
        if self.read_end < 0:
            return
        for _ in range(_LOG_BYTES >> 16):
            if self.ended:
                break
            self.take()
        os.close(self.read_end)
        os.close(self._file)
        self.read_end = -1
