"""The trainer process: confine itself, then load the app and answer the daemon until it hangs up.

Started by ``child`` as ``python -I -B -u -m edge_node.trainer.process SOCKET MEMORY LIFELINE`` with
three inherited file descriptors. Until the sandbox is entered nothing heavy is imported, for the
process forks there; ``loop`` is the rest.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

from edge_node.trainer import frames
from edge_node.trainer.device import device_nodes, device_places
from edge_node.trainer.ranks import Rank, RankFailedError, RanksUnavailableError, start_ranks
from tidegate.app_faults import describe_fault, is_out_of_memory
from tidegate.confine.frames import MAX_FRAME_BYTES, failure_frame
from tidegate.confine.sandbox import SandboxPlan, enter


def main(arguments: list[str]) -> int:
    """Run the process.

    Args:
        arguments: The numbers of the descriptors of the socket, the shared memory, the lifeline.

    Returns:
        The exit status: 0 when the daemon hung up, 1 after a failure was told to it.
    """
    connection_fd, memory_fd, lifeline_fd = (int(argument) for argument in arguments)
    connection = socket.socket(fileno=connection_fd)
    start = frames.decode_start(connection.recv(MAX_FRAME_BYTES))
    nodes = device_nodes(start.device)
    places = device_places(start.device) if nodes else ()
    plan = SandboxPlan(
        app_folder=start.app_folder or str(Path(__file__).parent),
        memory_mib=start.memory_mib,
        hidden=start.hidden,
        accelerator_nodes=nodes,
        readable=(str(Path(__file__).parents[1]), *places, *start.readable),
        processes=start.processes,
    )
    sandbox = enter(plan, lifeline_fd, (connection_fd, memory_fd))
    rank = Rank(0, 1, connection)
    try:
        if not start.app_folder:  # a probe
            _tell(rank, frames.report_frame(sandbox.seal(), "none"))
            return 0
        from edge_node.trainer import loop  # noqa: PLC0415 - torch, on this side of the fork

        if start.processes > 1:
            import edge_node.trainer.distributed  # noqa: F401, PLC0415 - once, for all ranks

        rank = start_ranks(start.processes, connection)
        loop.serve(start, rank, memory_fd, sandbox)
    except RankFailedError as error:
        _tell(rank, error.frame)
        return 1
    except BaseException as error:  # noqa: BLE001 - the app may raise anything, SystemExit too
        _tell(rank, _failure_of(error, sandbox.app_folder))
        return 1
    return 0


def _failure_of(error: BaseException, app_folder: str) -> dict[str, Any]:
    """Say what the app raised, and the last line of the app that it came through.

    The text may hold data of the site.
    """
    kind = "memory" if is_out_of_memory(error) else "app"
    if isinstance(error, RanksUnavailableError):
        kind = "ranks"
    return failure_frame(kind, describe_fault(error, app_folder))


def _tell(rank: Rank, frame: dict[str, Any]) -> None:
    try:
        rank.tell(frame)
    except BrokenPipeError:  # the daemon is gone; so are we, at once
        return


if __name__ == "__main__":
    # The app's libraries may have left threads that never end: nothing is waited for or flushed.
    os._exit(main(sys.argv[1:]))
