"""Evaluate a task record by record: a gradient and a metric vector for each row of a batch.

Each record's gradient must depend on nothing but that record and the model (privacy.md, D-REC
step 2): one record more or less in a batch would else move the others, and the sum by more than the
clipping norm. The loss therefore sees one record at a time (``torch.func.vmap``), the batch has a
fixed shape, and `check_independence` compares bits on this machine before any record is touched.

Shapes: D = coordinates, P = rows of a physical batch, C = columns, M = metrics a record.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from edge_node.task import Batch, Task, TaskError
from privacy.spec import VectorSpec

_CHECK_SEED = 20_261
_CHECK_BATCHES = 2
# What torch says, and what a task's author can do about it.
_HINTS = {
    "randomness": "does the model use dropout? Per-record gradients allow no random numbers: "
    "call eval() on those modules in model()",
    ".item()": "per-record gradients run under torch.func.vmap: no .item(), no float() of a tensor",
    "data-dependent control flow": "per-record gradients run under torch.func.vmap: use "
    "torch.where instead of `if` on values",
}
_DEPENDENCE = (
    "a record's gradient or metrics depend on the other records of its batch, or on its place in "
    "it, at physical_batch = {}; compute each record from itself alone, or choose another "
    "physical_batch for this device"
)
Outputs = tuple[Tensor, Tensor]


def load_libraries() -> None:
    """Make torch load what it otherwise loads at the first gradient, a second's work."""
    vmap(grad(lambda values: values.sum()))(torch.zeros(1, 1))


class _OfModel(nn.Module):
    """Call a function of a task as if it were the forward pass of a module around the model."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, batch: Batch) -> Tensor:
        return self._function(self.model, batch)


class RecordGradients:
    """The evaluation of one task at the model that lies in a given vector."""

    def __init__(
        self, task: Task, spec: VectorSpec, columns: tuple[str, ...], metrics_length: int
    ) -> None:
        """Prepare the evaluation.

        Args:
            task: The task, its model on the device to compute on.
            spec: Its trainable parameters.
            columns: The columns of a row.
            metrics_length: M.
        """
        if metrics_length and task.metrics is None:
            raise TaskError("the job has metrics, so the task must define a function metrics")
        self._columns = columns
        self._metrics_length = metrics_length
        self._device = next(task.model.parameters()).device
        self._loss = _OfModel(task.model, task.loss)
        self._metrics = _OfModel(task.model, task.metrics) if task.metrics else None
        self._model_D = torch.zeros(spec.length, device=self._device)
        self._sizes = [tensor.size for tensor in spec.tensors]
        parts = self._model_D.split(self._sizes)
        # Views made once: a request only overwrites the vector under them.
        self._parameters = {
            f"model.{tensor.name}": part.view(tensor.shape)
            for tensor, part in zip(spec.tensors, parts, strict=True)
        }
        self._evaluate: Callable[..., dict[str, Tensor]] = vmap(grad(self._record_loss), (None, 0))

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version that gradients are evaluated at, shape (D,)."""
        self._model_D.copy_(model_D)

    def __call__(self, rows_PC: Tensor, gradients_PD: Tensor, metrics_PM: Tensor) -> None:
        """Evaluate a physical batch.

        Args:
            rows_PC: The rows, padding included, shape (P, C).
            gradients_PD: Filled with each row's gradient, shape (P, D).
            metrics_PM: Filled with each row's metrics, shape (P, M).

        Raises:
            TaskError: The loss or the metrics have a wrong shape.
            Exception: Whatever the app raises.
        """
        rows_PC = rows_PC.to(self._device)
        try:
            gradients = self._evaluate(self._parameters, rows_PC)
        except RuntimeError as error:
            for word in (word for word in _HINTS if word in str(error)):
                error.add_note(_HINTS[word])
            raise
        flat = [part.reshape(len(rows_PC), -1) for part in gradients.values()]
        if self._device.type == "cpu":
            torch.cat(flat, dim=1, out=gradients_PD)
        else:
            gradients_PD.copy_(torch.cat(flat, dim=1))
        if self._metrics_length:
            metrics_PM.copy_(self._batch_metrics(rows_PC))

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
            Exception: Whatever the app raises on rows of values between 0 and 1.
        """
        physical_batch, length = first[0].shape
        source = torch.Generator().manual_seed(_CHECK_SEED)
        shape = (physical_batch, len(self._columns))
        for _ in range(_CHECK_BATCHES):
            # A model of all zeros would hide what the check looks for.
            self._model_D.copy_(torch.randn(length, generator=source) / length**0.25)
            rows_PC = torch.rand(shape, generator=source)
            self(rows_PC, *first)
            for shift in {1, physical_batch // 2}:
                self(rows_PC.roll(shift, 0), *second)
                _compare(first, second, shift, every=1)
            rows_PC[1::2] = torch.rand(shape, generator=source)[1::2]
            self(rows_PC, *second)
            _compare(first, second, 0, every=2)

    def _record_loss(self, parameters: dict[str, Tensor], row_C: Tensor) -> Tensor:
        columns = row_C.unsqueeze(1).unbind(0)
        batch = dict(zip(self._columns, columns, strict=True))
        loss: Tensor = functional_call(self._loss, parameters, (batch,))
        if loss.shape != (1,):
            raise TaskError(
                f"loss(model, batch) gave shape {tuple(loss.shape)} for a batch of one record; it "
                "must be one value a record, shape (1,): take no mean and no sum over the batch"
            )
        return loss.squeeze(0)

    def _batch_metrics(self, rows_PC: Tensor) -> Tensor:
        batch = dict(zip(self._columns, rows_PC.unbind(1), strict=True))
        module: Any = self._metrics
        with torch.no_grad():
            metrics: Tensor = functional_call(module, self._parameters, (batch,))
        expected = (len(rows_PC), self._metrics_length)
        if metrics.shape != expected:
            raise TaskError(
                f"metrics(model, batch) gave shape {tuple(metrics.shape)}; the job's metrics "
                f"have shape {expected}: see [[metrics]] in job.toml"
            )
        return metrics


def _compare(first: Outputs, second: Outputs, shift: int, *, every: int) -> None:
    """Compare rows of the first with where they went in the second, bit by bit."""
    physical_batch = len(first[0])
    for slot in range(0, physical_batch, every):
        for one, other in zip(first, second, strict=True):
            # As integers: a NaN is not even equal to itself.
            moved = other[(slot + shift) % physical_batch]
            if not torch.equal(one[slot].view(torch.int32), moved.view(torch.int32)):
                raise TaskError(_DEPENDENCE.format(physical_batch))
