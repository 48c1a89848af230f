"""Wrap a task into a Flower ``ClientApp``: Tidegate's own training code around the job's functions.

Messages carry settings only. Rows and results go through the shared memory that the port shows: the
daemon samples, clips, sums and adds noise, so neither rows nor gradients are this app's to send.
"""

from typing import Protocol

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from edge_node.flower.messages import float_setting, int_setting, reply_to
from edge_node.tasks.local_steps import OptimiserSteps
from edge_node.trainer.batch_port import BatchPort
from edge_node.trainer.frames import GRADIENTS, OPTIMISE, STEPS


class Gradients(Protocol):
    """What evaluates a physical batch: ``RecordGradients``, or a rank's share of them."""

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version, shape (D,)."""
        ...

    def __call__(self, rows_PW: Tensor, gradients_PD: Tensor, metrics_PM: Tensor) -> None:
        """Fill in gradients and metrics."""
        ...


class Steps(Protocol):
    """What takes local steps: ``LocalSteps``, or ranks together."""

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version, shape (D,)."""
        ...

    def step(self, rows_nW: Tensor, learning_rate: float, metrics_nM: Tensor | None = None) -> None:
        """Take one step on a batch."""
        ...

    def read_model(self, out_D: Tensor) -> None:
        """Write the trained parameters, shape (D,)."""
        ...


def build_gradients_app(port: BatchPort, engine: Gradients) -> ClientApp:
    """Make the app that answers a request for per-record gradients and metrics.

    Args:
        port: Where batches come from and results go.
        engine: What evaluates a batch.
    """
    app = ClientApp()
    model_D = torch.from_numpy(port.arrays.model_D)
    slots = [
        tuple(torch.from_numpy(array) for array in (s.rows_PW, s.gradients_PD, s.metrics_PM))
        for s in port.arrays.slots
    ]

    @app.train(GRADIENTS)
    def record_gradients(message: Message, _: Context) -> Message:
        n_chunks = int_setting(message, "chunks")
        engine.set_model(model_D)
        for slot, _n_valid in port.batches(n_chunks):
            engine(*slots[slot])  # padding too: the shape of a batch never changes
        return reply_to(message, {"chunks": n_chunks})

    return app


def build_steps_app(port: BatchPort, engine: Steps) -> ClientApp:
    """Make the app that answers a request for local steps.

    Args:
        port: Where batches come from; the trained model goes where the given one was.
        engine: What takes the steps.
    """
    app = ClientApp()
    model_D = torch.from_numpy(port.arrays.model_D)
    slots = [
        (torch.from_numpy(slot.rows_PW), torch.from_numpy(slot.metrics_PM))
        for slot in port.arrays.slots
    ]

    @app.train(STEPS)
    def local_steps(message: Message, _: Context) -> Message:
        n_chunks = int_setting(message, "chunks")
        learning_rate = float_setting(message, "learning_rate")
        engine.set_model(model_D)
        for slot, n_valid in port.batches(n_chunks):
            rows_PW, metrics_PM = slots[slot]
            engine.step(rows_PW[:n_valid], learning_rate, metrics_PM[:n_valid])
        engine.read_model(model_D)
        return reply_to(message, {"chunks": n_chunks})

    return app


def build_optimiser_app(port: BatchPort, engine: OptimiserSteps) -> ClientApp:
    """Make the app that answers a request for one step of the task's optimizer.

    Args:
        port: Where model and gradient lie; the new model goes where the given one was.
        engine: What takes the step.
    """
    app = ClientApp()
    model_D = torch.from_numpy(port.arrays.model_D)
    gradient_D = torch.from_numpy(port.arrays.slots[0].gradients_PD[0])

    @app.train(OPTIMISE)
    def optimise(message: Message, _: Context) -> Message:
        engine.step(model_D, gradient_D)
        return reply_to(message, {})

    return app
