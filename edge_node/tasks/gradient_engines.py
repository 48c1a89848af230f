"""Take the gradient of each record of a batch: by torch.func, or by the hooks of Opacus.

Both give what a loop over single records gives. `MappedGradients` shows the loss one record at a
time (``torch.func.vmap``): no record can touch another's. Some layers and much of Hugging Face's
code cannot be mapped, because they look at values; for those `HookedGradients` lets the whole batch
through the model and has Opacus put each layer's gradients together record by record. There a loss
that mixes records is a mistake that only comparisons find: `record_gradients` makes them.

Shapes: D = coordinates, B = records of a batch.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from edge_node.tasks.flat_model import FlatModel
from edge_node.tasks.module_rules import unsupported_modules
from edge_node.tasks.task import Batch, Task, TaskError

MAPPED = "torch.func"
HOOKED = "opacus"
_UNMAPPABLE = (RuntimeError, TypeError, ValueError)
_EXTRA = "pip install 'tidegate[opacus]'"


class GradientEngine(Protocol):
    """What takes a batch's gradients."""

    name: str

    def __call__(self, batch: Batch, count: int) -> list[Tensor]:
        """Give each record's gradient, one tensor (B, size) a parameter, in the spec's order."""
        ...

    def aside(self) -> AbstractContextManager[None]:
        """Let the model be used in the ordinary way for a while."""
        ...


def load_libraries() -> None:
    """Make torch load what it otherwise loads at the first gradient, a second's work."""
    vmap(grad(lambda values: values.sum()))(torch.zeros(1, 1))


def choose_engine(task: Task, flat: FlatModel, batch: Batch, count: int) -> GradientEngine:
    """Choose the engine that can take this task's gradients; torch.func where it can.

    Args:
        task: The task; its model's parameters are those of `flat`.
        flat: The trainable parameters.
        batch: Made-up records, at least two.
        count: How many.

    Raises:
        TaskError: Neither can; says why and names the layers.
        Exception: Whatever the app raises on a plain batch.
    """
    task.losses(batch, count)  # mistakes of the task show here, and not as those of an engine
    mapped = MappedGradients(task, flat)
    try:
        mapped(batch, count)
    except _UNMAPPABLE as error:
        reason = _in_plain_words(error)
        if "randomness" in str(error):
            raise TaskError(
                "the loss draws random numbers, and per-record gradients allow none: does the"
                " model use dropout? Set it to 0, or call eval() on those modules in model()"
            ) from error
    else:
        return mapped
    return _hooked(task, flat, batch, count, reason)


class MappedGradients:
    """Gradients by ``vmap`` over single records."""

    name = MAPPED

    def __init__(self, task: Task, flat: FlatModel) -> None:
        """Prepare the evaluation."""
        self._task = task
        self._around = _OfModel(task.model, task.loss)
        # Views made once: a request only overwrites the vector under them.
        self._parameters = {
            f"model.{name}": parameter.detach()
            for name, parameter in zip(flat.names, flat.parameters, strict=True)
        }
        self._map: Callable[..., dict[str, Tensor]] = vmap(grad(self._record_loss), (None, 0))

    def __call__(self, batch: Batch, count: int) -> list[Tensor]:
        """Give each record's gradient, one tensor (B, size) a parameter."""
        gradients = self._map(self._parameters, batch)
        return [part.reshape(count, -1) for part in gradients.values()]

    def aside(self) -> AbstractContextManager[None]:
        """Let the model be used in the ordinary way, as it always can here."""
        return nullcontext()

    def _record_loss(self, parameters: dict[str, Tensor], record: Batch) -> Tensor:
        one = {name: values.unsqueeze(0) for name, values in record.items()}
        loss: Tensor = functional_call(self._around, parameters, (one,))
        if loss.shape != (1,):
            raise self._task.fault(
                self._task.loss,
                f"loss(model, batch) gave shape {tuple(loss.shape)} for a batch of one record; it"
                " must be one value a record, shape (1,): take no mean and no sum over the batch"
                " (reduction='none' in torch's loss functions)",
            )
        return loss.squeeze(0)


class HookedGradients:
    """Gradients by the hooks of Opacus, on the model itself: it is not wrapped, nor renamed."""

    name = HOOKED

    def __init__(self, task: Task, flat: FlatModel) -> None:
        """Put the hooks in place.

        Raises:
            TaskError: Opacus is not installed, or the model has layers that it cannot do.
        """
        try:
            from opacus.grad_sample.grad_sample_module import GradSampleHooks  # noqa: PLC0415
        except ImportError as error:
            raise TaskError(f"Opacus is not installed: {_EXTRA}") from error
        unsupported = unsupported_modules(task.model)
        if unsupported:
            raise TaskError("; ".join(unsupported))
        self._task = task
        self._flat = flat
        # Opacus passes over modules in eval mode, silently; but eval() only matters to modules that
        # draw or count, and those are refused or never own a parameter.
        for module in task.model.modules():
            if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
                module.training = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._hooks = GradSampleHooks(task.model, loss_reduction="sum", strict=False)

    def __call__(self, batch: Batch, count: int) -> list[Tensor]:
        """Give each record's gradient, one tensor (B, size) a parameter.

        Raises:
            TaskError: A parameter has no gradient of each record; names it.
        """
        self._clear()
        with warnings.catch_warnings():
            # A layer whose input needs no gradient makes torch explain its hooks each time.
            warnings.simplefilter("ignore")
            self._task.losses(batch, count).sum().backward()
        parts = [
            self._part(name, parameter, count)
            for name, parameter in zip(self._flat.names, self._flat.parameters, strict=True)
        ]
        self._clear()
        return parts

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let the model be used in the ordinary way: the hooks do nothing."""
        self._hooks.disable_hooks()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            self._hooks.enable_hooks()

    def remove(self) -> None:
        """Take the hooks off the model."""
        self._clear()
        self._hooks.remove_hooks()

    def _clear(self) -> None:
        for parameter in self._flat.parameters:
            parameter.grad = None
            parameter.grad_sample = None  # type: ignore[attr-defined]

    def _part(self, name: str, parameter: nn.Parameter, count: int) -> Tensor:
        sample: Any = parameter.grad_sample  # type: ignore[attr-defined]
        if sample is None and parameter.grad is None:
            return torch.zeros((count, parameter.numel()), device=parameter.device)
        if sample is None:
            raise TaskError(
                f"parameter {name!r} is used where Opacus cannot see it, outside its module's"
                " forward() or under gradient checkpointing: call the module instead of reading its"
                " parameter, and turn checkpointing off"
            )
        if not isinstance(sample, Tensor):
            raise TaskError(
                f"the module of parameter {name!r} runs again while gradients are taken (gradient"
                " checkpointing?), which gives wrong per-record gradients: turn that off"
            )
        if sample.shape != (count, *parameter.shape):
            raise TaskError(
                f"the module of parameter {name!r} does not see one input a record (as GPT-2's"
                f" position embedding: it sees one for all): its gradients have shape"
                f" {tuple(sample.shape)} for {count} records; give it an input of {count} rows (for"
                " GPT-2: pass position_ids of the shape of input_ids), or freeze it"
            )
        return sample.reshape(count, -1)


class _OfModel(nn.Module):
    """Call a function of a task as if it were the forward pass of a module around the model."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, batch: Batch) -> Tensor:
        return self._function(self.model, batch)


def _in_plain_words(error: Exception) -> str:
    """Shorten what torch says when it cannot map over a function."""
    first = str(error).partition("\n")[0]
    if ".item()" in first or "data-dependent" in first:
        return "the task looks at values: .item(), float(), bool() or `if` of a tensor"
    if "saved tensor hooks" in first:
        return "the model uses gradient checkpointing"
    return first[:200]


def _hooked(
    task: Task, flat: FlatModel, batch: Batch, count: int, unmappable: str
) -> HookedGradients:
    why = f"per-record gradients of this task cannot be taken. torch.func: {unmappable}; Opacus: "
    try:
        hooked = HookedGradients(task, flat)
    except TaskError as error:
        raise TaskError(why + str(error)) from error
    try:
        hooked(batch, count)
    except (TaskError, *_UNMAPPABLE, AttributeError, NotImplementedError) as error:
        hooked.remove()
        raise TaskError(why + str(error)) from error
    return hooked
