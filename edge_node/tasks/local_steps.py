"""Train a task's model for some plain gradient steps, for jobs without record-level privacy.

Shapes: D = coordinates, n = rows of a batch, W = numbers of a row, M = metrics a record.
"""

import torch
from torch import Tensor

from edge_node.tasks.flat_model import FlatModel
from edge_node.tasks.task import Task
from edge_node.trainer.device import FLOAT32, autocast
from privacy.spec import VectorSpec
from tidegate.schema import Schema


class LocalSteps:
    """Gradient descent on the mean loss, its parameters in one flat vector."""

    def __init__(
        self,
        task: Task,
        spec: VectorSpec,
        schema: Schema,
        metrics_length: int = 0,
        *,
        precision: str = FLOAT32,
        own_optimiser: bool = False,
    ) -> None:
        """Prepare the steps.

        Args:
            task: The task, its model on the device to compute on.
            spec: Its trainable parameters.
            schema: The columns of a row.
            metrics_length: M.
            precision: Of the forward pass; parameters and gradients are float32.
            own_optimiser: Whether the task's optimizer takes the steps; its state then lasts as
                long as this object, over all rounds.

        Raises:
            TaskError: The task has no such function, or it gives something else.
        """
        self._task = task
        self._schema = schema
        self._metrics_length = metrics_length
        self._precision = precision
        self._flat = FlatModel(task.model, spec)
        self._optimizer = task.make_optimizer(self._flat.parameters) if own_optimiser else None

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version to start from, shape (D,)."""
        self._flat.set(model_D)

    def step(self, rows_nW: Tensor, learning_rate: float, metrics_nM: Tensor | None = None) -> None:
        """Take one step on the mean loss of a batch.

        Args:
            rows_nW: The batch, shape (n, W).
            learning_rate: Of plain descent; the task's optimizer has its own.
            metrics_nM: Filled with each record's metrics before the step, shape (n, M).

        Raises:
            TaskError: The loss or the metrics have a wrong shape.
            Exception: Whatever the app raises.
        """
        count = len(rows_nW)
        batch = self._task.batch(rows_nW.to(self._flat.device), self._schema)
        if self._metrics_length and metrics_nM is not None:
            metrics_nM.copy_(self._task.metric_rows(batch, count, self._metrics_length))
        with autocast(self._flat.device, self._precision):
            losses_n = self._task.losses(batch, count).float()
        gradients = torch.autograd.grad(
            losses_n.mean(), self._flat.parameters, allow_unused=True, materialize_grads=True
        )
        if self._optimizer is None:
            with torch.no_grad():
                for parameter, gradient in zip(self._flat.parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-learning_rate)
            return
        for parameter, gradient in zip(self._flat.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()

    def read_model(self, out_D: Tensor) -> None:
        """Write the trained parameters to a vector, shape (D,)."""
        self._flat.read(out_D)


class OptimiserSteps:
    """Steps of a task's optimizer on gradients that are private already (mode ``record-local``)."""

    def __init__(self, task: Task, spec: VectorSpec) -> None:
        """Make the optimizer; its state lasts as long as this object, over all rounds.

        Raises:
            TaskError: The task has no such function, or it gives something else.
        """
        self._flat = FlatModel(task.model, spec)
        self._optimizer = task.make_optimizer(self._flat.parameters)

    def step(self, model_D: Tensor, gradient_D: Tensor) -> None:
        """Step from a model along a gradient, shapes (D,); the model is overwritten."""
        self._flat.set(model_D)
        self._flat.set_gradient(gradient_D)
        self._optimizer.step()
        self._flat.read(model_D)
