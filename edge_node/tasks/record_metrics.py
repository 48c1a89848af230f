"""Evaluate a task's metrics record by record, without any gradient: what an evaluation job needs.

As with gradients, a record's metrics must be its own: one record more or less would else move those
of its batch mates, and the sum by more than the public bound. `check` compares bits on this machine
before any record is touched.

Shapes: D = coordinates, P = rows of a physical batch, W = numbers of a row, M = metrics a record.
"""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from edge_node.flower.messages import int_setting, reply_to
from edge_node.tasks.batches import draw_rows
from edge_node.tasks.flat_model import FlatModel
from edge_node.tasks.module_rules import BufferWatch, check_record_modules
from edge_node.tasks.task import Task, TaskError
from edge_node.trainer.batch_port import BatchPort
from edge_node.trainer.frames import METRICS
from privacy.spec import VectorSpec
from tidegate.schema import Schema

_CHECK_SEED = 20_263
_DEPENDENCE = (
    "a record's metrics depend on the other records of its batch, or on its place in it, at"
    " physical_batch = {}; compute each record's from itself alone, or choose another"
    " physical_batch for this device"
)


class RecordMetrics:
    """The metrics of one task at the model that lies in a given vector."""

    def __init__(self, task: Task, spec: VectorSpec, schema: Schema, metrics_length: int) -> None:
        """Prepare the evaluation.

        Args:
            task: The task, its model on the device to compute on.
            spec: Its trainable parameters.
            schema: The columns of a row.
            metrics_length: M.

        Raises:
            TaskError: A part of the model mixes records.
        """
        check_record_modules(task.model)
        self._task = task
        self._schema = schema
        self._metrics_length = metrics_length
        self._flat = FlatModel(task.model, spec)

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version that is evaluated, shape (D,)."""
        self._flat.set(model_D)

    def __call__(self, rows_PW: Tensor, metrics_PM: Tensor) -> None:
        """Evaluate a physical batch.

        Args:
            rows_PW: The rows, padding included, shape (P, W).
            metrics_PM: Filled with each row's metrics, shape (P, M).

        Raises:
            TaskError: The metrics have a wrong shape.
            Exception: Whatever the app raises.
        """
        batch = self._task.batch(rows_PW.to(self._flat.device), self._schema)
        metrics_PM.copy_(self._task.metric_rows(batch, len(rows_PW), self._metrics_length))

    def check(self, first_PM: Tensor, second_PM: Tensor) -> None:
        """Compare bits of metrics over several arrangements of made-up rows.

        Args:
            first_PM: Room for a physical batch's metrics.
            second_PM: The same again.

        Raises:
            TaskError: A row's metrics depend on its slot or its mates, or a buffer changes.
            Exception: Whatever the app raises on rows between the declared bounds.
        """
        watch = BufferWatch(self._task.model)
        physical_batch, length = len(first_PM), len(self._flat.vector_D)
        source = torch.Generator().manual_seed(_CHECK_SEED)
        self._flat.set(torch.randn(length, generator=source) / length**0.25)
        rows_PW = draw_rows(self._schema, physical_batch, source)
        self(rows_PW, first_PM)
        for shift in {1, physical_batch // 2}:
            self(rows_PW.roll(shift, 0), second_PM)
            _compare(first_PM, second_PM, shift, every=1)
        rows_PW[1::2] = draw_rows(self._schema, physical_batch, source)[1::2]
        self(rows_PW, second_PM)
        _compare(first_PM, second_PM, 0, every=2)
        watch.check()


def build_metrics_app(port: BatchPort, engine: RecordMetrics) -> ClientApp:
    """Make the app that answers a request for per-record metrics, its engine checked first.

    Args:
        port: Where batches come from and results go.
        engine: What evaluates a batch.

    Raises:
        TaskError: A record's metrics are not its own.
        Exception: Whatever the app raises.
    """
    app = ClientApp()
    model_D = torch.from_numpy(port.arrays.model_D)
    slots = [
        (torch.from_numpy(slot.rows_PW), torch.from_numpy(slot.metrics_PM))
        for slot in port.arrays.slots
    ]
    engine.check(slots[0][1], slots[1][1])

    @app.train(METRICS)
    def record_metrics(message: Message, _: Context) -> Message:
        n_chunks = int_setting(message, "chunks")
        engine.set_model(model_D)
        for slot, _n_valid in port.batches(n_chunks):
            engine(*slots[slot])  # padding too: the shape of a batch never changes
        return reply_to(message, {"chunks": n_chunks})

    return app


def _compare(first_PM: Tensor, second_PM: Tensor, shift: int, *, every: int) -> None:
    """Compare rows of the first with where they went in the second, bit by bit."""
    moved = second_PM.roll(-shift, 0)[::every].view(torch.int32)
    if not torch.equal(first_PM[::every].view(torch.int32), moved):
        raise TaskError(_DEPENDENCE.format(len(first_PM)))
