"""The process of a job's own ServerApp: confine itself, then run the app's main to its end.

Started by ``server_app.child`` as ``python -I -B -u -m aggregator.server_app.process SOCKET MEMORY
LIFELINE`` with three inherited file descriptors. It has no network, no file but the app and nothing
of the aggregator's; what it sends becomes the model that sites download, and what it hears are
means. Until the sandbox is entered nothing heavy is imported, for the process forks there.
"""

import os
import socket
import sys
from functools import partial
from pathlib import Path

from aggregator.server_app import frames
from tidegate.app_faults import describe_fault, is_out_of_memory
from tidegate.confine.frames import MAX_FRAME_BYTES, encode, failure_frame
from tidegate.confine.sandbox import Sandbox, SandboxPlan, enter


def main(arguments: list[str]) -> int:
    """Run the process.

    Args:
        arguments: The numbers of the descriptors of the socket, the shared memory, the lifeline.

    Returns:
        The exit status: 0 when main returned, 1 after a failure was told to the aggregator.
    """
    connection_fd, memory_fd, lifeline_fd = (int(argument) for argument in arguments)
    connection = socket.socket(fileno=connection_fd)
    start = frames.decode_start(connection.recv(MAX_FRAME_BYTES))
    plan = SandboxPlan(
        app_folder=start.app_folder,
        memory_mib=start.memory_mib,
        hidden=start.hidden,
        readable=(str(Path(__file__).parents[1]),),
        scratch_mib=start.scratch_mib,
        max_file_mib=start.scratch_mib,
    )
    sandbox = enter(plan, lifeline_fd, (connection_fd, memory_fd))
    try:
        _work(start, connection, memory_fd, sandbox)
    except BaseException as error:  # noqa: BLE001 - the app may raise anything, SystemExit too
        _tell(connection, _failure_of(error, sandbox.app_folder))
        return 1
    _tell(connection, {frames.DONE: True})
    return 0


def _work(start: frames.Start, connection: socket.socket, memory_fd: int, sandbox: Sandbox) -> None:
    # Heavy libraries, on this side of the fork.
    from aggregator.secure_grid import SecureGrid  # noqa: PLC0415
    from aggregator.server_app import load, strategy_watch  # noqa: PLC0415
    from aggregator.server_app.rounds import SandboxMissing, SocketRounds  # noqa: PLC0415

    rounds = SocketRounds(start, connection, memory_fd)
    os.close(memory_fd)
    load.prepare_process(start.seed, start.threads)
    report = sandbox.seal()
    if report.missing and start.required:
        detail = "; ".join((*report.missing, *report.notes))
        raise SandboxMissing(detail)
    _tell(connection, frames.report_frame(report))
    _enter_scratch()
    folder = sandbox.app_folder
    watch = strategy_watch.watch_strategies(
        check=partial(strategy_watch.check_strategy, single_reply=start.single_reply),
        on_start=lambda _strategy, _named: None,
        on_result=rounds.tell_result,
    )
    with watch:
        app = load.load_server_app(folder, start.reference)
        load.run_main(app, SecureGrid(rounds), start.run_config)


def _enter_scratch() -> None:
    """Let relative paths that main writes to end in the sandbox's own scratch folder."""
    try:
        os.chdir("/tmp")  # noqa: S108 - the jail's own
    except OSError:  # where there is no jail, nothing is writable
        return


def _failure_of(error: BaseException, app_folder: str) -> dict[str, object]:
    from aggregator.server_app.rounds import SandboxMissing  # noqa: PLC0415
    from privacy.errors import TidegateError  # noqa: PLC0415

    if isinstance(error, SandboxMissing):
        return failure_frame(frames.SANDBOX, str(error))
    text = describe_fault(error, app_folder)
    if isinstance(error, TidegateError):
        return failure_frame(frames.REFUSED, text.partition(": ")[2] or text)
    return failure_frame(frames.MEMORY if is_out_of_memory(error) else frames.APP, text)


def _tell(connection: socket.socket, frame: dict[str, object]) -> None:
    try:
        connection.sendall(encode(frame))
    except BrokenPipeError:  # the aggregator let go of us
        return


if __name__ == "__main__":
    # The app's libraries may have left threads that never end: nothing is waited for or flushed.
    os._exit(main(sys.argv[1:]))
