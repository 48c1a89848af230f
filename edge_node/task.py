"""Load a job's task file and check that it keeps to the rules of per-record training.

A task file defines ``model() -> nn.Module``, ``loss(model, batch) -> (B,)`` and, if the job has
metrics, ``metrics(model, batch) -> (B, M)``; a batch is a dict of columns, each of shape (B,).
"""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from privacy.spec import TensorSpec, VectorSpec

Batch = dict[str, Tensor]


class TaskError(Exception):
    """The task breaks a rule; the message says which, and the mend."""


@dataclass(frozen=True)
class Task:
    """A loaded task.

    Attributes:
        model: As ``model()`` gave it.
        loss: The task's function.
        metrics: The task's function, or None.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]
    metrics: Callable[[nn.Module, Batch], Tensor] | None


def load_task(app_folder: Path, task_file: str, seed: int) -> Task:
    """Import the task file and build its model.

    Args:
        app_folder: The app's root; its modules can be imported by the task file.
        task_file: Path inside it.
        seed: Seeds torch before ``model()``.

    Raises:
        TaskError: A function is missing or ``model()`` does not give an allowed module.
        Exception: Whatever the app raises.
    """
    sys.path.insert(0, str(app_folder))
    module = _import_file(app_folder / task_file)
    for name in ("model", "loss"):
        if not callable(getattr(module, name, None)):
            raise TaskError(f"{task_file} must define a function {name}")
    torch.manual_seed(seed)
    model = module.model()
    if not isinstance(model, nn.Module):
        raise TaskError(f"model() in {task_file} must return a torch.nn.Module")
    _check_modules(model)
    return Task(model, module.loss, getattr(module, "metrics", None))


def spec_of(model: nn.Module) -> VectorSpec:
    """Describe the trainable parameters in the order of ``named_parameters``.

    Raises:
        TaskError: There are none, or one is not float32.
    """
    tensors = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dtype != torch.float32:
            raise TaskError(f"parameter {name!r} is {parameter.dtype}; it must be float32")
        tensors.append(TensorSpec(name, tuple(parameter.shape)))
    if not tensors:
        raise TaskError("model() has no trainable parameter")
    return VectorSpec(tuple(tensors))


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tidegate_task", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise TaskError(f"the app has no Python file {path.name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look the module up by name
    spec.loader.exec_module(module)
    return module


def _check_modules(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind = type(module).__name__
        # Its statistics mix the records of a batch, and travel outside the clip and the noise.
        mixes = isinstance(module, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001
        if mixes or getattr(module, "track_running_stats", False):
            raise TaskError(
                f"module {name!r} is a {kind}, which mixes the records of a batch; "
                "use GroupNorm or LayerNorm"
            )
