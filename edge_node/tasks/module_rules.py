"""Say which modules a task's model must not have, by their place in it, with what to use instead.

Nothing of the app's data is needed for these rules: they hold before anything runs.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

# What Opacus' hooks do not understand, and its own twin of it that they do.
_TWINS = {
    "LSTM": "opacus.layers.DPLSTM",
    "GRU": "opacus.layers.DPGRU",
    "RNN": "opacus.layers.DPRNN",
    "MultiheadAttention": "opacus.layers.DPMultiheadAttention",
}


class TaskError(Exception):
    """The task breaks a rule; the message says which, and the mend."""


def check_modules(model: nn.Module) -> None:
    """Refuse modules whose statistics mix records and travel outside the clip and the noise.

    A normalisation in eval mode uses constants and is allowed.

    Raises:
        TaskError: There is one; names it.
    """
    for name, module in model.named_modules():
        is_batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001
        if module.training and (is_batch_norm or getattr(module, "track_running_stats", False)):
            raise TaskError(
                f"module {_place(name)} is a {type(module).__name__}, which mixes the records of a"
                f" batch; use {_norm_in_its_place(module)}, or nn.LayerNorm; or call eval() on it"
                " in model() if its statistics are to stay as they are"
            )


def check_record_modules(model: nn.Module) -> None:
    """Refuse what spoils per-record gradients: random numbers and recomputed activations.

    Raises:
        TaskError: There is one; names it and the mend.
    """
    for name, module in model.named_modules():
        if module.training and _dropout_of(module) > 0:
            raise TaskError(
                f"module {_place(name)} ({type(module).__name__}) drops out at random, and"
                " per-record gradients allow no random numbers: set its dropout to 0, or call"
                " eval() on it in model()"
            )
        if getattr(module, "gradient_checkpointing", False) is True:
            raise TaskError(
                f"module {_place(name)} ({type(module).__name__}) has gradient checkpointing on,"
                " which gives wrong per-record gradients: call gradient_checkpointing_disable() in"
                " model(), and take a smaller [task] physical_batch if memory is short"
            )


def unsupported_modules(model: nn.Module) -> list[str]:
    """List the trainable modules that Opacus cannot take per-record gradients of, each a sentence.

    Needs the extra ``opacus``.
    """
    from opacus.validators import ModuleValidator  # noqa: PLC0415 - optional

    found = []
    for name, module in model.named_modules():
        if not any(parameter.requires_grad for parameter in module.parameters()):
            continue
        kind = type(module).__name__
        if type(module) in ModuleValidator.VALIDATORS:
            for error in ModuleValidator.VALIDATORS[type(module)](module):
                mend = f"use {_TWINS[kind]}" if kind in _TWINS else str(error)
                found.append(f"module {_place(name)} ({kind}) is not supported: {mend}")
        elif kind in _TWINS and type(module).__module__.startswith("torch.nn"):
            found.append(f"module {_place(name)} ({kind}) is not supported: use {_TWINS[kind]}")
    return found


class BufferWatch:
    """Notice buffers that the app's functions change: they would carry records past the noise."""

    def __init__(self, model: nn.Module) -> None:
        """Remember the buffers as they are."""
        self._model = model
        self._before = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def check(self) -> None:
        """Compare the buffers with what they were.

        Raises:
            TaskError: One changed; names it.
        """
        for name in self._changed():
            raise TaskError(
                f"buffer {name!r} of the model changes when the loss or the metrics are evaluated:"
                " it would carry records past the clip and the noise; keep it constant (eval()),"
                " or do without it"
            )

    def _changed(self) -> Iterator[str]:
        for name, buffer in self._model.named_buffers():
            before = self._before.get(name)
            if before is None or not _same(before, buffer):
                yield name


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_bits(one), _bits(other))  # a NaN is not even equal to itself


def _bits(values: Tensor) -> Tensor:
    return values.detach().reshape(-1).view(torch.uint8)


def _dropout_of(module: nn.Module) -> float:
    if isinstance(module, nn.modules.dropout._DropoutNd):  # noqa: SLF001
        return module.p
    value = getattr(module, "dropout", 0.0)  # LSTM, MultiheadAttention and their twins
    return value if isinstance(value, float) else 0.0


def _norm_in_its_place(module: nn.Module) -> str:
    channels = getattr(module, "num_features", 0)
    if not isinstance(channels, int) or channels < 1:
        return "nn.GroupNorm"
    return f"nn.GroupNorm({math.gcd(32, channels)}, {channels})"


def _place(name: str) -> str:
    return repr(name) if name else "model() itself"
