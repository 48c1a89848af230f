"""Let whole-number columns take part in gradients: codes that carry a distribution over values.

A task looks categories and tokens up in an embedding, makes them one-hot, or compares a prediction
with them. `SoftCodes` are whole numbers, the likeliest ones, that give these three operations their
distribution instead, so that an attack can follow gradients through an app's code as it stands
(TabLeak, arXiv 2210.01785: softmax relaxation). Anything else that is done with them sees the
likeliest whole numbers, which is what the app expects, and passes no gradient.

Shapes: X = any leading dimensions, K = values.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class SoftCodes(Tensor):
    """Whole numbers with their distribution.

    Attributes:
        hard: The likeliest values as an ordinary tensor, shape (X).
        soft: Their distribution, shape (X, K).
        low: The lowest value.
    """

    hard: Tensor
    soft: Tensor
    low: int

    @classmethod
    def of(cls, soft: Tensor, low: int, dtype: torch.dtype = torch.int64) -> "SoftCodes":
        """Make codes from a distribution.

        Args:
            soft: Shape (X, K), each a distribution.
            low: The value that comes first in it.
            dtype: Of the codes.
        """
        hard = (soft.detach().argmax(dim=-1) + low).to(dtype)
        made = hard.as_subclass(cls)
        made.hard, made.soft, made.low = hard, soft, low
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let the three operations see the distribution, and all others the codes."""
        named = dict(kwargs or {})
        rule = _RULES.get(func)
        answer = rule(func, args, named) if rule is not None else None
        if answer is not None:
            return answer
        return func(*_hard(args), **_hard(named))


def _hard(value: Any) -> Any:
    if isinstance(value, SoftCodes):
        return value.hard
    if isinstance(value, (tuple, list)):
        return type(value)(_hard(item) for item in value)
    if isinstance(value, dict):
        return {name: _hard(item) for name, item in value.items()}
    return value


def _wide(codes: SoftCodes, count: int) -> Tensor:
    """Give the distribution over the values 0 to count - 1, shape (X, count)."""
    wide = functional.pad(codes.soft, (codes.low, max(0, count - codes.low - _values(codes))))
    return wide[..., :count]


def _values(codes: SoftCodes) -> int:
    return codes.soft.shape[-1]


def _argument(args: tuple[Any, ...], named: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else named.get(name)


def _one_hot(_: object, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    codes, count = args[0], _argument(args, named, 1, "num_classes")
    if codes.low < 0:
        return None
    return _wide(codes, codes.low + _values(codes) if count in (None, -1) else count)


def _embedding(_: object, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    codes, weight = args[0], _argument(args, named, 1, "weight")
    if not isinstance(codes, SoftCodes) or codes.low < 0:
        return None
    return _wide(codes, weight.shape[0]) @ weight


def _cross_entropy(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    scores, codes = args[0], _argument(args, named, 1, "target")
    if not isinstance(codes, SoftCodes) or codes.low < 0:
        return None
    classes = scores.shape[-1] if scores.ndim == 1 else scores.shape[1]
    target = _wide(codes, classes)
    target = target if scores.ndim == 1 else target.movedim(-1, 1)
    if func is functional.nll_loss:
        losses = -(target * scores).sum(dim=-1 if scores.ndim == 1 else 1)
        reduction = named.get("reduction", "mean")
        return {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction]
    named = {key: value for key, value in named.items() if key not in ("ignore_index", "target")}
    return func(scores, target, *args[2:], **named)


def _gather(_: object, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    scores = args[0]
    dim, codes = _argument(args, named, 1, "dim"), _argument(args, named, 2, "index")
    last = scores.ndim - 1
    fits = isinstance(codes, SoftCodes) and codes.low >= 0 and dim in (-1, last)
    if not fits or codes.soft.ndim != scores.ndim + 1:
        return None
    return (_wide(codes, scores.shape[-1]) * scores.unsqueeze(-2)).sum(dim=-1)


def _convert(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Keep the distribution under whole types; give the expected value under others."""
    codes = args[0]
    if not isinstance(codes, SoftCodes):
        return None
    hard = func(codes.hard, *_hard(args[1:]), **_hard(named))
    if not hard.is_floating_point():
        kept = hard.dtype is not torch.bool
        return SoftCodes.of(codes.soft, codes.low, hard.dtype) if kept else hard
    if codes.hard.is_floating_point():
        return SoftCodes.of(codes.soft, codes.low, hard.dtype)
    return expected(codes).to(hard.dtype)


def _detach(_: object, args: tuple[Any, ...], __: dict[str, Any]) -> Any:
    codes = args[0]
    return SoftCodes.of(codes.soft.detach(), codes.low, codes.hard.dtype)


def expected(codes: SoftCodes) -> Tensor:
    """Give the mean value of each code, shape (X)."""
    values = torch.arange(codes.low, codes.low + _values(codes), device=codes.soft.device)
    return codes.soft @ values.to(codes.soft.dtype)


def _reshape(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Do to the distribution what is done to the leading dimensions."""
    codes = args[0]
    if not isinstance(codes, SoftCodes):
        return None
    hard = func(codes.hard, *_hard(args[1:]), **named)
    places = torch.arange(codes.hard.numel(), device=codes.soft.device)
    taken = func(places.reshape(codes.hard.shape), *_hard(args[1:]), **named)
    soft = codes.soft.reshape(-1, _values(codes))[taken.reshape(-1)]
    return SoftCodes.of(soft.reshape(*hard.shape, -1), codes.low, hard.dtype)


Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_RULES: Mapping[Any, Rule] = {
    functional.one_hot: _one_hot,
    functional.embedding: _embedding,
    functional.cross_entropy: _cross_entropy,
    functional.nll_loss: _cross_entropy,
    Tensor.detach: _detach,
    torch.gather: _gather,
    Tensor.gather: _gather,
    **dict.fromkeys(
        (Tensor.to, Tensor.long, Tensor.int, Tensor.type, Tensor.float, Tensor.double), _convert
    ),
    **dict.fromkeys(
        (
            Tensor.__getitem__,
            Tensor.reshape,
            Tensor.view,
            Tensor.flatten,
            Tensor.squeeze,
            Tensor.unsqueeze,
            Tensor.contiguous,
            torch.flatten,
            torch.squeeze,
            torch.unsqueeze,
        ),
        _reshape,
    ),
}
