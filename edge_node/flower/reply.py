"""Judge what a ClientApp answered, before any of it can enter a sum (daemon side).

The description, the vector and the state come from the app's process: hostile input. Here it is
bounded, read, and held against the job; what a site may send is one float32 vector of the model's
length, which is then clipped, and the declared metrics, each cut to its range. Nothing else of a
reply goes anywhere: not ``num-examples`` (every site weighs 1), not a further record.

What a refusal says names only what the job names; what the app itself wrote goes to the site's own
log (``detail``).

Shapes: M = metric coordinates.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason, UsageError
from privacy.metrics import MeanMetric, MetricLayout
from privacy.spec import VectorSpec

DESCRIPTION_BYTES = 8 << 20
"""The most bytes of a description; 65 536 tensors with names of usual length fit."""

_EXACT = "float32"
_CONVERTED = frozenset(
    {"float16", "float64", "bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_SHOWN = 300
_WEIGHT = "num-examples"


class ReplyRefused(PeerError):  # noqa: N818 - it is the reply that was refused
    """A reply that this site sends nothing of; ``detail`` is for its own log."""

    def __init__(self, reason: Reason, message: str, detail: str = "") -> None:
        super().__init__(reason, message)
        self.detail = detail[:_SHOWN]


@dataclass(frozen=True)
class ReplyArray:
    """What the app says of one array: its kind of number and shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ReplyDescription:
    """A reply as its process describes it, read and typed, not yet judged.

    Attributes:
        n_array_records: How many there were.
        n_metric_records: Likewise.
        n_config_records: Likewise.
        arrays: Those of the one array record, by name; empty where there was not one.
        metrics: Single numbers of the first metric record; None where it held a list.
    """

    n_array_records: int
    n_metric_records: int
    n_config_records: int
    arrays: dict[str, ReplyArray]
    metrics: dict[str, float | None]


def read_description(raw: bytes) -> ReplyDescription:
    """Read a description.

    Raises:
        ReplyRefused: TRAINER_FAILED: the app answered with an error; MALFORMED: these bytes are
            none.
    """
    try:
        fields: dict[str, Any] = json.loads(raw)
        if "error" in fields:
            text = str(fields["error"])
            raise ReplyRefused(Reason.TRAINER_FAILED, "the app answered with an error", text)
        arrays, metrics, configs = (_count(number) for number in fields["records"])
        return ReplyDescription(
            arrays, metrics, configs, _arrays(fields["arrays"]), _metrics(fields["metrics"])
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        message = "the app's process described its reply in no known way"
        raise ReplyRefused(Reason.MALFORMED, message, str(error)) from error


def check_update(reply: ReplyDescription, spec: VectorSpec) -> tuple[str, ...]:
    """Hold a training's reply against the model.

    Returns:
        Notes for the site's own log.

    Raises:
        ReplyRefused: MALFORMED: not exactly one ArrayRecord and at most one MetricRecord;
            WRONG_SHAPE: arrays missing or too many, of another shape, or no real numbers.
    """
    if reply.n_array_records != 1:
        message = "the reply of the app must hold exactly one ArrayRecord"
        raise ReplyRefused(Reason.MALFORMED, message, f"it held {reply.n_array_records}")
    _check_metric_records(reply)
    converted = set()
    for tensor in spec.tensors:
        array = reply.arrays.get(tensor.name)
        if array is None:
            message = f"the reply of the app lacks the array {tensor.name!r} of the model"
            raise ReplyRefused(Reason.WRONG_SHAPE, message)
        if array.shape != tensor.shape:
            message = f"the array {tensor.name!r} of the app's reply has not the model's shape"
            raise ReplyRefused(Reason.WRONG_SHAPE, message, f"{array.shape}, not {tensor.shape}")
        if array.dtype in _CONVERTED:
            converted.add(array.dtype)
        elif array.dtype != _EXACT:
            message = f"the array {tensor.name!r} of the app's reply holds no real numbers"
            raise ReplyRefused(Reason.WRONG_SHAPE, message, array.dtype)
    if len(reply.arrays) > len(spec.tensors):
        alien = sorted(reply.arrays.keys() - {tensor.name for tensor in spec.tensors})
        message = "the reply of the app holds arrays that the model does not have"
        raise ReplyRefused(Reason.WRONG_SHAPE, message, ", ".join(alien[:5]))
    notes = [f"arrays of {kind} were rounded to float32" for kind in sorted(converted)]
    return (*notes, *_dropped(reply))


def check_evaluation(reply: ReplyDescription) -> tuple[str, ...]:
    """Hold an evaluation's reply against what one may be; its arrays, if any, go nowhere.

    Returns:
        Notes for the site's own log.

    Raises:
        ReplyRefused: MALFORMED: more than one MetricRecord.
    """
    _check_metric_records(reply)
    return _dropped(reply)


def metric_vector(
    reply: ReplyDescription, layout: MetricLayout, scale: float, *, keep_nan: bool = False
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Read the declared metrics: each cut to [0, upper], and then the same share of its block.

    Args:
        reply: As described.
        layout: The job's metrics, all of them means.
        scale: What an entry of 1.0 weighs: `MetricLayout.coordinate_scale`.
        keep_nan: Gives NaN for a metric that is not finite, where that is no reason to refuse.

    Returns:
        Shape (M,), and notes for the site's own log.

    Raises:
        ReplyRefused: TRAINER_FAILED: a declared metric is missing or no single number; NOT_FINITE:
            it is NaN or infinite, and is not kept.
    """
    values = []
    for metric in layout.metrics:
        if not isinstance(metric, MeanMetric):
            raise UsageError(f"metric {metric.name!r} of a Flower app must be a mean")
        value = reply.metrics.get(metric.name)
        if value is None:
            message = f"the reply of the app lacks the declared metric {metric.name!r}"
            raise ReplyRefused(Reason.TRAINER_FAILED, message)
        if not math.isfinite(value):
            if keep_nan:
                values.append(math.nan)
                continue
            message = f"the app's metric {metric.name!r} is not finite"
            raise ReplyRefused(Reason.NOT_FINITE, message)
        values.append(min(max(value, 0.0), metric.upper) / metric.upper * scale)
    declared = {metric.name for metric in layout.metrics}
    left_out = sorted(reply.metrics.keys() - declared - {_WEIGHT})
    notes = (f"metrics that the job does not declare stay here: {', '.join(left_out[:8])}",)
    return np.array(values, dtype=np.float32), notes if left_out else ()


def _check_metric_records(reply: ReplyDescription) -> None:
    if reply.n_metric_records > 1:
        message = "the reply of the app must hold at most one MetricRecord"
        raise ReplyRefused(Reason.MALFORMED, message, f"it held {reply.n_metric_records}")


def _dropped(reply: ReplyDescription) -> tuple[str, ...]:
    return ("a ConfigRecord of the reply stays here",) if reply.n_config_records else ()


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a count must be a whole number")
    return value


def _arrays(entries: Any) -> dict[str, ReplyArray]:
    found: dict[str, ReplyArray] = {}
    for name, dtype, shape in entries:
        found[_text(name)] = ReplyArray(_text(dtype), tuple(_count(size) for size in shape))
    if len(found) != len(entries):
        raise ValueError("an array is named twice")
    return found


def _metrics(entries: Any) -> dict[str, float | None]:
    return {_text(name): _number(value) for name, value in entries.items()}


def _number(value: Any) -> float | None:
    if value is not None and type(value) not in (int, float):
        raise TypeError("a metric must be a number")
    return None if value is None else float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name must be text")
    return value
