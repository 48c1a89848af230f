"""Load a job's task file: what a model owner writes, and all of it (docs/guides/tasks.md).

A task file defines ``model()`` or ``model(base_models)``, ``loss(model, batch)`` and, as the job
asks for them, ``metrics(model, batch)``, ``optimizer(parameters)`` and ``collate(batch)``.

Shapes: B = records of a batch, M = metrics a record, W = numbers of a row.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from edge_node.tasks.batches import Batch, read_batch
from edge_node.tasks.module_rules import TaskError, check_modules
from privacy.spec import TensorSpec, VectorSpec
from tidegate.schema import Schema

__all__ = ["NO_BASE_MODELS", "Batch", "Task", "TaskError", "load_task", "spec_of"]

NO_BASE_MODELS: Mapping[str, Path] = MappingProxyType({})
Loss = Callable[[nn.Module, Batch], Tensor]
OptimizerMaker = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Task:
    """A loaded task.

    Attributes:
        model: As ``model()`` gave it.
        loss: Gives one loss a record, shape (B,).
        metrics: Gives one row of metric blocks a record, shape (B, M); or None.
        optimizer: Makes the optimizer of local steps from the list of parameters; or None.
        collate: Makes of the raw columns the batch that loss and metrics get, each record from
            itself alone; or None.
        file: The task file's name, for messages.
    """

    model: nn.Module
    loss: Loss
    metrics: Loss | None = None
    optimizer: OptimizerMaker | None = None
    collate: Callable[[Batch], Batch] | None = None
    file: str = "task.py"

    def batch(self, rows_BW: Tensor, schema: Schema) -> Batch:
        """Make the batch that loss and metrics get.

        Args:
            rows_BW: float32, shape (B, W).
            schema: The columns of a row.

        Raises:
            TaskError: ``collate`` gives something else than tensors of B records.
            Exception: Whatever the app raises.
        """
        batch = read_batch(rows_BW, schema)
        if self.collate is None:
            return batch
        made: Any = self.collate(batch)
        if not isinstance(made, dict) or not all(isinstance(v, Tensor) for v in made.values()):
            raise self.fault(self.collate, "collate(batch) must return a dict of tensors")
        for name, values in made.items():
            if values.shape[:1] != (len(rows_BW),):
                raise self.fault(
                    self.collate,
                    f"collate(batch) gave {name!r} the shape {tuple(values.shape)} for a batch of"
                    f" {len(rows_BW)} records; the first dimension must stay that of the records",
                )
        return made

    def losses(self, batch: Batch, count: int) -> Tensor:
        """Evaluate the loss of each record, shape (B,).

        Args:
            batch: As `batch` made it.
            count: B.

        Raises:
            TaskError: It gives something else than one value a record.
            Exception: Whatever the app raises.
        """
        losses_B: Any = self.loss(self.model, batch)
        if not isinstance(losses_B, Tensor):
            kind = type(losses_B).__name__
            raise self.fault(self.loss, f"loss(model, batch) must return a tensor, not {kind}")
        if losses_B.shape != (count,):
            raise self.fault(
                self.loss,
                f"loss(model, batch) gave shape {tuple(losses_B.shape)} for a batch of {count}; it"
                f" must be one value a record, shape ({count},): take no mean and no sum over the"
                " batch (reduction='none' in torch's loss functions)",
            )
        return losses_B

    def metric_rows(self, batch: Batch, count: int, metrics_length: int) -> Tensor:
        """Evaluate the metrics of each record, shape (B, M), without a gradient.

        Raises:
            TaskError: There is no such function, or it gives another shape.
            Exception: Whatever the app raises.
        """
        if self.metrics is None:
            raise TaskError(
                f"the job has [[metrics]], so {self.file} must define a function metrics"
            )
        with torch.no_grad():
            metrics_BM: Any = self.metrics(self.model, batch)
        expected = (count, metrics_length)
        if not isinstance(metrics_BM, Tensor) or metrics_BM.shape != expected:
            shape = getattr(metrics_BM, "shape", type(metrics_BM).__name__)
            shown = tuple(shape) if isinstance(shape, torch.Size) else shape
            raise self.fault(
                self.metrics,
                f"metrics(model, batch) gave shape {shown}; the job's metrics have shape"
                f" {expected}: see [[metrics]] in job.toml",
            )
        return metrics_BM

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the task's optimizer over the trainable parameters.

        Raises:
            TaskError: There is no such function, or it gives something else.
            Exception: Whatever the app raises.
        """
        if self.optimizer is None:
            raise TaskError(
                f"[local] has no learning_rate, so {self.file} must define optimizer(parameters);"
                " or set [local] learning_rate for plain gradient descent"
            )
        made: Any = self.optimizer(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise self.fault(
                self.optimizer,
                "optimizer(parameters) must return a torch.optim.Optimizer, not"
                f" {type(made).__name__}",
            )
        known = {id(parameter) for parameter in parameters}
        held = [p for group in made.param_groups for p in group["params"]]
        if not all(id(parameter) in known for parameter in held):
            raise self.fault(
                self.optimizer, "optimizer(parameters) must step the given parameters, no others"
            )
        return made

    def fault(self, function: object, what: str) -> TaskError:
        """Make the error that says what is wrong with one of the task's functions, and where."""
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        line = f", line {code.co_firstlineno}" if code is not None else ""
        return TaskError(f"{self.file}{line}: {what}")


def load_task(
    app_folder: Path,
    task_file: str,
    seed: int,
    base_models: Mapping[str, Path] = NO_BASE_MODELS,
) -> Task:
    """Import the task file and build its model.

    Args:
        app_folder: The app's root; its modules can be imported by the task file.
        task_file: Path inside it.
        seed: Seeds torch before ``model()``.
        base_models: Folder of each base model that the job declares; read them, nothing more.

    Raises:
        TaskError: A function is missing or ``model()`` does not give an allowed module.
        Exception: Whatever the app raises.
    """
    sys.path.insert(0, str(app_folder))
    module = _import_file(app_folder / task_file)
    for name in ("model", "loss"):
        if not callable(getattr(module, name, None)):
            raise TaskError(f"{task_file} must define a function {name}")
    for name in ("metrics", "optimizer", "collate"):
        if getattr(module, name, None) is not None and not callable(getattr(module, name)):
            raise TaskError(f"{name} in {task_file} must be a function")
    torch.manual_seed(seed)
    model = _build(module.model, task_file, base_models)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise TaskError(f"model() in {task_file} must return a torch.nn.Module, not {kind}")
    check_modules(model)
    return Task(
        model=model,
        loss=module.loss,
        metrics=getattr(module, "metrics", None),
        optimizer=getattr(module, "optimizer", None),
        collate=getattr(module, "collate", None),
        file=task_file,
    )


def spec_of(model: nn.Module) -> VectorSpec:
    """Describe the trainable parameters in the order of ``named_parameters``.

    A parameter that two modules share stands once, under its first name.

    Raises:
        TaskError: There are none, or one is not float32 with values.
    """
    tensors = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dtype != torch.float32 or parameter.is_meta:
            kind = "on the meta device" if parameter.is_meta else str(parameter.dtype)
            raise TaskError(f"parameter {name!r} is {kind}; it must be float32, with values")
        tensors.append(TensorSpec(name, tuple(parameter.shape)))
    if not tensors:
        raise TaskError("model() has no trainable parameter")
    return VectorSpec(tuple(tensors))


def _build(make: Callable[..., object], file: str, base_models: Mapping[str, Path]) -> object:
    """Call ``model()`` or ``model(base_models)``, as the function takes it."""
    wanted = [
        parameter
        for parameter in inspect.signature(make).parameters.values()
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    if not wanted:
        if base_models:
            raise TaskError(
                f"the job declares [[task.base_models]], so {file} must define model(base_models),"
                " which gets a dict of the folders by name"
            )
        return make()
    if not base_models and wanted[0].default is wanted[0].empty:
        raise TaskError(
            f"model({wanted[0].name}) in {file} takes base models, and the job declares none: add"
            " [[task.base_models]] with name and sha256 to job.toml"
        )
    return make(dict(base_models)) if base_models else make()


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tidegate_task", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise TaskError(f"the app has no Python file {path.name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look the module up by name
    spec.loader.exec_module(module)
    return module
