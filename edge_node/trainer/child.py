"""Start, hear and end a trainer process (daemon side)."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from edge_node.trainer.device import device_environment
from edge_node.trainer.frames import Start, encode_start
from edge_node.trainer.shared_memory import SharedLayout
from privacy.errors import PeerError, Reason, UsageError
from tidegate.confine.frames import MAX_FRAME_BYTES, decode, encode
from tidegate.confine.start import ConfinedProcess, start_confined

_MODULE = "edge_node.trainer.process"
_LAST_FRAMES = 8
"""More than can be on the way: a report, a frame for each slot, a failure."""
_END_POLL_S = 0.005
_END_POLLS = 400
_SIGNAL_BASE = 128
_IN_THE_LOG = "the site's own log says more"


class TrainerFailure(PeerError):  # noqa: N818 - it is the app that failed, not the caller
    """The app raised, hung, or died.

    The message is one of a few fixed sentences and may go to the aggregator. ``detail`` says what
    the app raised and where; it may hold data, so it belongs in the site's local log only.
    """

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(Reason.TRAINER_FAILED, f"{message}; {_IN_THE_LOG}")
        self.detail = detail


class TrainerChild:
    """A running trainer process."""

    def __init__(self, start: Start, layout: SharedLayout, log_path: Path | None) -> None:
        """Start the process; it then confines itself and loads the app.

        Args:
            start: What it is told first.
            layout: The memory shared with it.
            log_path: Where what the app prints goes, or None.
        """
        self._memory_mib = start.memory_mib
        memory_fd = layout.create()
        try:
            self.arrays = layout.attach(memory_fd)
            self._confined = _start(memory_fd, start.threads, log_path)
        finally:
            os.close(memory_fd)
        self._connection = self._confined.connection
        self._process = self._confined.process
        self._connection.setblocking(False)
        self._connection.send(encode_start(start))

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    @property
    def process_id(self) -> int:
        """Return the id of the supervisor, the trainer's parent."""
        return self._process.pid

    def private_mib(self) -> float | None:
        """Read how much memory the processes behind the supervisor hold that nobody shares, in MiB.

        Anonymous pages, in memory or swapped out: neither libraries nor the arrays shared with
        the daemon. None where the kernel does not tell, and for a trainer that has just ended.
        """
        try:
            return sum(map(_private_kib, _descendants(self._process.pid))) / 1024
        except (OSError, ValueError):
            return None

    async def send(self, frame: dict[str, Any]) -> None:
        """Send a frame.

        Raises:
            TrainerFailure: The process has ended.
        """
        try:
            await asyncio.get_running_loop().sock_sendall(self._connection, encode(frame))
        except OSError as error:
            raise await self._last_words() from error

    async def receive(self) -> dict[str, Any]:
        """Wait for the next frame that is not a failure.

        Raises:
            TrainerFailure: It tells a failure, makes no sense, or the process has ended.
            UsageError: This machine lacks a protection that the site requires.
        """
        loop = asyncio.get_running_loop()
        try:
            raw = await loop.sock_recv(self._connection, MAX_FRAME_BYTES)
        except OSError as error:
            raise await self._last_words() from error
        if not raw:
            raise await self._ended()
        try:
            frame = decode(raw)
        except PeerError as error:
            raise TrainerFailure("the app broke the trainer's protocol", str(error)) from error
        if "failed" in frame:
            raise self._failure(frame)
        return frame

    async def end(self) -> int:
        """End the process and all it started, and give the trainer's exit status.

        A trainer that a signal ended has status 128 plus the signal's number.
        """
        self._confined.let_go()
        try:
            for _ in range(_END_POLLS):
                if self._process.poll() is not None:
                    break
                await asyncio.sleep(_END_POLL_S)
        finally:
            if self._process.poll() is None:  # it hangs before the sandbox, or we are cancelled
                self._process.kill()
            status = self._process.wait()
        return status

    def _failure(self, frame: dict[str, Any]) -> TrainerFailure | UsageError:
        detail = str(frame.get("detail", ""))
        match frame["failed"]:
            case "sandbox":
                return UsageError(
                    f"the sandbox is required and this machine cannot give all of it: {detail}; "
                    'mend that, or set the sandbox to "best-available"'
                )
            case "ranks":
                return UsageError(
                    f"this machine cannot run a trainer of several processes: {detail}; set"
                    " [trainer] processes = 1"
                )
            case "memory":
                limit = f"the app exceeded its memory limit of {self._memory_mib} MiB"
                return TrainerFailure(limit, detail)
            case _:
                return TrainerFailure("the app raised an error", detail)

    async def _last_words(self) -> TrainerFailure | UsageError:
        """Give what the process said before it closed its end; its frames are still queued."""
        for _ in range(_LAST_FRAMES):
            try:
                raw = self._connection.recv(MAX_FRAME_BYTES)
                frame = decode(raw) if raw else {}
            except (OSError, PeerError):
                continue  # a reset is told once, before the frames that came ahead of it
            if not raw:
                break
            if "failed" in frame:
                await self.end()
                return self._failure(frame)
        return await self._ended()

    async def _ended(self) -> TrainerFailure:
        return TrainerFailure("the app's process ended unexpectedly", await self.end_words())

    async def end_words(self) -> str:
        """End the process and say how it ended: by which signal, with which exit code.

        For the site's own log: the app, which sees rows, chooses its exit code.
        """
        status = await self.end()
        if status <= _SIGNAL_BASE:
            return f"the trainer process ended with exit code {status}"
        number = status - _SIGNAL_BASE
        words = f"the trainer process was ended by signal {number} ({_signal_name(number)})"
        if number == signal.SIGKILL:
            words += ", as the kernel does when the machine's memory runs out"
        return words


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    found = [int(child) for child in children]
    return found + [deeper for child in found for deeper in _descendants(child)]


def _private_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return sum(int(lines.get(key, "0").split()[0]) for key in ("RssAnon", "VmSwap"))


def _start(memory_fd: int, threads: int, log_path: Path | None) -> ConfinedProcess:
    log = subprocess.DEVNULL if log_path is None else _open_log(log_path)
    try:
        return start_confined(_MODULE, memory_fd, threads, log, device_environment())
    finally:
        if log != subprocess.DEVNULL:
            os.close(log)


def _open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
