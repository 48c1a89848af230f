"""Train a task's model for some plain gradient steps, for jobs without record-level privacy.

Shapes: D = coordinates, n = rows of a batch, C = columns.
"""

import torch
from torch import Tensor

from edge_node.task import Task, TaskError
from privacy.spec import VectorSpec


class LocalSteps:
    """Gradient descent on the mean loss, its parameters in one flat vector."""

    def __init__(self, task: Task, spec: VectorSpec, columns: tuple[str, ...]) -> None:
        self._task = task
        self._columns = columns
        parameters = dict(task.model.named_parameters())
        self._parameters = [parameters[tensor.name] for tensor in spec.tensors]
        self._device = self._parameters[0].device
        self._model_D = torch.zeros(spec.length, device=self._device)
        parts = self._model_D.split([tensor.size for tensor in spec.tensors])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.data = part.view(parameter.shape)

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version to start from, shape (D,)."""
        self._model_D.copy_(model_D)

    def step(self, rows_nC: Tensor, learning_rate: float) -> None:
        """Take one step on the mean loss of a batch.

        Raises:
            TaskError: The loss has a wrong shape.
            Exception: Whatever the app raises.
        """
        columns = rows_nC.to(self._device).unbind(1)
        batch = dict(zip(self._columns, columns, strict=True))
        losses_n = self._task.loss(self._task.model, batch)
        if losses_n.shape != (len(rows_nC),):
            raise TaskError(
                f"loss(model, batch) gave shape {tuple(losses_n.shape)}; it must be one value a "
                f"record, shape ({len(rows_nC)},)"
            )
        gradients = torch.autograd.grad(
            losses_n.mean(), self._parameters, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=-learning_rate)

    def read_model(self, out_D: Tensor) -> None:
        """Write the trained parameters to a vector, shape (D,)."""
        out_D.copy_(self._model_D)
