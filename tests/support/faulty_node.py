"""An edge node that strikes itself down at a step: ``Event:count:when:SIGNAL`` in a file ``fault``.

A real daemon with a stand-in for the trainer; SIGUSR1 has it read the file beside its site.toml.
``Event`` names what the participant takes, the ``count``-th of which is hit: ``before`` it is
looked at, ``after`` all that follows from it is durable but nothing has left, or ``late``, when
what follows from it has left.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import numpy as np

from edge_node.cli import app
from edge_node.daemon import EdgeNode
from edge_node.participant import Participant
from edge_node.rounds import task_rounds
from tidegate.confine.sandbox import SandboxReport

LATE_S = 0.05


class QuickTrainer:
    """Gives every record the gradient 0.01 in each coordinate, without a process."""

    def __init__(self, job, limits, confinement):
        self.job = job

    async def start(self):
        return SandboxReport(True, True, True, True, True)

    async def record_gradients(self, model_D, rows_NC, on_chunk):
        await asyncio.sleep(0)
        gradients_ND = np.full((len(rows_NC), self.job.spec.length), 0.01, np.float32)
        on_chunk(gradients_ND, np.zeros((len(rows_NC), 0), np.float32), len(rows_NC))

    async def stop(self):
        pass


class Fault:
    """What is to strike this process, as SIGUSR1 told it to read."""

    def __init__(self, file):
        self._file = file
        self._name, self._count, self._when, self._signal = "", 0, "", 0
        self._due = False

    def arm(self, *_):
        self._name, count, self._when, kind = self._file.read_text().split(":")
        self._count, self._signal = int(count), signal.Signals[f"SIG{kind}"]

    def strike(self):
        os.kill(os.getpid(), self._signal)

    def begin(self, event):
        """See an event before the participant does."""
        if type(event).__name__ == self._name:
            self._count -= 1
            self._due = self._count == 0
            if self._due and self._when == "before":
                self._due = False
                self.strike()

    def end(self):
        """See that all that follows from an event has been done."""
        if self._due:
            self._due = False
            if self._when == "after":
                self.strike()
            else:
                asyncio.get_running_loop().call_later(LATE_S, self.strike)


def watch(fault):
    handle, dispatch = Participant.handle, EdgeNode.dispatch

    def watched_handle(self, event, now_s):
        fault.begin(event)
        return handle(self, event, now_s)

    def watched_dispatch(self, event):
        dispatch(self, event)
        fault.end()

    Participant.handle, EdgeNode.dispatch = watched_handle, watched_dispatch
    signal.signal(signal.SIGUSR1, fault.arm)


if __name__ == "__main__":
    task_rounds.Trainer = QuickTrainer
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    watch(Fault(config.parent / "fault"))
    app()
