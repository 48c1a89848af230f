"""Evaluate a task record by record: a gradient and a metric vector for each row of a batch.

Each record's gradient must depend on nothing but that record and the model (privacy.md, D-REC
step 2): one record more or less in a batch would else move the others, and the sum by more than the
clipping norm. The batch has a fixed shape, `check_loop` compares with single records, and
`check_independence` compares bits on this machine, before any record is touched.

Shapes: D = coordinates, P = rows of a physical batch, W = numbers of a row, M = metrics a record.
"""

import torch
from torch import Tensor

from edge_node.tasks.batches import draw_rows
from edge_node.tasks.flat_model import FlatModel
from edge_node.tasks.gradient_engines import choose_engine
from edge_node.tasks.module_rules import BufferWatch, check_record_modules
from edge_node.tasks.task import Batch, Task, TaskError
from privacy.spec import VectorSpec
from tidegate.schema import Schema

_CHECK_SEED = 20_261
_CHECK_BATCHES = 2
_LOOP_RECORDS = 3
# Sums in another order differ in their last bits; a mistake of a layer differs in all of them.
_LOOP_TOLERANCE = 1e-3
_DEPENDENCE = (
    "a record's gradient or metrics depend on the other records of its batch, or on its place in "
    "it, at physical_batch = {}; compute each record from itself alone, or choose another "
    "physical_batch for this device"
)
Outputs = tuple[Tensor, Tensor]


class RecordGradients:
    """The evaluation of one task at the model that lies in a given vector."""

    def __init__(self, task: Task, spec: VectorSpec, schema: Schema, metrics_length: int) -> None:
        """Prepare the evaluation and choose what takes the gradients.

        Args:
            task: The task, its model on the device to compute on.
            spec: Its trainable parameters.
            schema: The columns of a row.
            metrics_length: M.

        Raises:
            TaskError: The model or the functions break a rule, or no engine can do them.
            Exception: Whatever the app raises on made-up rows.
        """
        if metrics_length and task.metrics is None:
            raise TaskError(f"the job has [[metrics]]: {task.file} must define a function metrics")
        check_record_modules(task.model)
        self._task = task
        self._schema = schema
        self._metrics_length = metrics_length
        self._flat = FlatModel(task.model, spec)
        self._engine = choose_engine(task, self._flat, self._made_up(2, _CHECK_SEED), 2)

    @property
    def engine(self) -> str:
        """Return what takes the gradients: ``torch.func`` or ``opacus``."""
        return self._engine.name

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version that gradients are evaluated at, shape (D,)."""
        self._flat.set(model_D)

    def __call__(self, rows_PW: Tensor, gradients_PD: Tensor, metrics_PM: Tensor) -> None:
        """Evaluate a physical batch.

        Args:
            rows_PW: The rows, padding included, shape (P, W).
            gradients_PD: Filled with each row's gradient, shape (P, D).
            metrics_PM: Filled with each row's metrics, shape (P, M).

        Raises:
            TaskError: The loss or the metrics have a wrong shape.
            Exception: Whatever the app raises.
        """
        count = len(rows_PW)
        batch = self._task.batch(rows_PW.to(self._flat.device), self._schema)
        parts = self._engine(batch, count)
        if self._flat.device.type == "cpu":
            torch.cat(parts, dim=1, out=gradients_PD)
        else:
            gradients_PD.copy_(torch.cat(parts, dim=1))
        if self._metrics_length:
            metrics_PM.copy_(self._task.metric_rows(batch, count, self._metrics_length))

    def check(self, first: Outputs, second: Outputs) -> None:
        """Hold the task to all that per-record privacy asks of it, before any record is touched.

        Args:
            first: Room for a physical batch's results, shapes (P, D) and (P, M).
            second: The same again.

        Raises:
            TaskError: A record's result is not its own, or a buffer of the model changes.
            Exception: Whatever the app raises on rows between the declared bounds.
        """
        watch = BufferWatch(self._task.model)
        self.check_loop()
        self.check_independence(first, second)
        watch.check()

    def check_loop(self) -> None:
        """Compare some records' gradients with those of single records by plain autograd.

        Raises:
            TaskError: They are not the same: a layer, or the loss, is not what it seems.
            Exception: Whatever the app raises on made-up rows.
        """
        source = torch.Generator().manual_seed(_CHECK_SEED)
        self._randomise(source)
        rows_BW = draw_rows(self._schema, _LOOP_RECORDS, source).to(self._flat.device)
        batch = self._task.batch(rows_BW, self._schema)
        together_BD = torch.cat(self._engine(batch, _LOOP_RECORDS), dim=1)
        for number, row_W in enumerate(rows_BW):
            one = self._task.batch(row_W.unsqueeze(0), self._schema)
            self._compare_with_loop(together_BD[number], self._alone(one))

    def check_independence(self, first: Outputs, second: Outputs) -> None:
        """Compare bits of gradients and metrics over several arrangements of made-up rows.

        Matrix products take other paths for the last rows of a batch, in a few numbers only: rows
        are moved by one (as by one record more or less) and by half, and half of them replaced.

        Args:
            first: Room for a physical batch's results, shapes (P, D) and (P, M).
            second: The same again.

        Raises:
            TaskError: A row's result depends on its slot or its mates on this machine, or has a
                wrong shape.
            Exception: Whatever the app raises on rows between the declared bounds.
        """
        physical_batch = len(first[0])
        source = torch.Generator().manual_seed(_CHECK_SEED)
        for _ in range(_CHECK_BATCHES):
            self._randomise(source)
            rows_PW = draw_rows(self._schema, physical_batch, source)
            self(rows_PW, *first)
            for shift in {1, physical_batch // 2}:
                self(rows_PW.roll(shift, 0), *second)
                _compare(first, second, shift, every=1)
            rows_PW[1::2] = draw_rows(self._schema, physical_batch, source)[1::2]
            self(rows_PW, *second)
            _compare(first, second, 0, every=2)

    def _randomise(self, source: torch.Generator) -> None:
        """Take a random model: one of all zeros would hide what the checks look for."""
        length = len(self._flat.vector_D)
        self._flat.set(torch.randn(length, generator=source) / length**0.25)

    def _made_up(self, count: int, seed: int) -> Batch:
        rows_BW = draw_rows(self._schema, count, torch.Generator().manual_seed(seed))
        return self._task.batch(rows_BW.to(self._flat.device), self._schema)

    def _alone(self, one: Batch) -> Tensor:
        """Take the gradient of a single record by plain autograd, shape (D,)."""
        with self._engine.aside():
            parts = torch.autograd.grad(
                self._task.losses(one, 1).sum(),
                self._flat.parameters,
                allow_unused=True,
                materialize_grads=True,
            )
        return torch.cat([part.reshape(-1) for part in parts])

    def _compare_with_loop(self, together_D: Tensor, alone_D: Tensor) -> None:
        sizes = [parameter.numel() for parameter in self._flat.parameters]
        scale = float(alone_D.abs().max())
        parts = zip(self._flat.names, together_D.split(sizes), alone_D.split(sizes), strict=True)
        for name, together, alone in parts:
            off = float((together - alone).abs().max()) if together.numel() else 0.0
            if off > _LOOP_TOLERANCE * max(scale, 1e-12):  # false where a loss is not finite
                raise TaskError(
                    f"the gradient of {name!r} in a batch is not that of the record alone"
                    f" ({self.engine}: off by {off:.3g} of {scale:.3g}): does the loss mix records,"
                    " or the model checkpoint activations?"
                )


def _compare(first: Outputs, second: Outputs, shift: int, *, every: int) -> None:
    """Compare rows of the first with where they went in the second, bit by bit."""
    physical_batch = len(first[0])
    for one, other in zip(first, second, strict=True):
        # As integers: a NaN is not even equal to itself.
        moved = other.roll(-shift, 0)[::every].view(torch.int32)
        if not torch.equal(one[::every].view(torch.int32), moved):
            raise TaskError(_DEPENDENCE.format(physical_batch))
