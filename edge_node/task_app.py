"""Wrap a task into a Flower ``ClientApp``: Tidegate's own training code around the job's functions.

Messages carry settings only. Rows and results go through the shared memory that the port shows: the
daemon samples, clips, sums and adds noise, so neither rows nor gradients are this app's to send.
"""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from edge_node.batch_port import BatchPort
from edge_node.flower_messages import float_setting, int_setting, reply_to
from edge_node.local_steps import LocalSteps, OptimiserSteps
from edge_node.record_gradients import RecordGradients
from edge_node.trainer_frames import GRADIENTS, OPTIMISE, STEPS


def build_gradients_app(port: BatchPort, engine: RecordGradients) -> ClientApp:
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


def build_steps_app(port: BatchPort, engine: LocalSteps) -> ClientApp:
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
