"""An edge node that strikes itself down at a chosen step: ``FAULT=Event:count:when:SIGNAL``.

A real daemon with a stand-in for the trainer. ``Event`` names what the participant takes, the
``count``-th of which is hit: ``before`` it is looked at, ``after`` all that follows from it is
durable but nothing has left, or ``late``, when what follows from it has left.
"""

import asyncio
import os
import signal

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


def arm(name, count, when, kind):
    number = signal.Signals[f"SIG{kind}"]
    seen, due = [], []
    handle, dispatch = Participant.handle, EdgeNode.dispatch

    def strike():
        os.kill(os.getpid(), number)

    def counted(self, event, now_s):
        if type(event).__name__ == name:
            seen.append(name)
            if len(seen) == int(count):
                strike() if when == "before" else due.append(when)
        return handle(self, event, now_s)

    def followed(self, event):
        dispatch(self, event)
        while due:
            if due.pop() == "after":
                strike()
            else:
                asyncio.get_running_loop().call_later(LATE_S, strike)

    Participant.handle, EdgeNode.dispatch = counted, followed


if __name__ == "__main__":
    task_rounds.Trainer = QuickTrainer
    if os.environ.get("FAULT"):
        arm(*os.environ["FAULT"].split(":"))
    app()
