"""Train scikit-learn's linear models as Tidegate tasks, and give them back as fitted estimators.

A task file is then a few lines::

    from sklearn.linear_model import LogisticRegression
    from tidegate.sklearn_task import Scale, linear_task

    TASK = linear_task(
        LogisticRegression(C=1.0),
        label="default",
        columns={"age": Scale(centre=50.0, width=15.0), "income": Scale(log=True, low=0.0)},
        records=120_000,
    )
    model, loss, metrics = TASK.model, TASK.loss, TASK.metrics

Sites never fit the estimator: they evaluate its loss and gradient record by record, in whichever
privacy mode the job has, and the server optimiser does the rest. The penalty is in every record's
loss, at its share: scikit-learn minimises ``C * sum(loss) + |w|^2 / 2``, which is n C times the
mean over n records of ``loss + |w|^2 / (2 n C)``; so n, the records of the whole consortium, must
be a public number.

The estimator's own solver, tolerance and number of iterations mean nothing here. Needs the extra
``sklearn`` only where an estimator is made.

Shapes: B = records of a batch, F = columns, K = outputs (1, or the classes of three and more).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from privacy.errors import UsageError

Batch = Mapping[str, Tensor]

LOSS_UPPER = 4.0
"""What the "loss" metric is cut at: ``upper`` of its ``[[metrics]]``."""

_MIN_CLASSES = 2
_CLASSIFIERS = ("log_loss", "hinge", "squared_hinge", "modified_huber")


@dataclass(frozen=True)
class Scale:
    """How a raw column becomes an input, by public constants: clamp, logarithm, centre, width.

    A missing value becomes 0, as if it were the centre.

    Attributes:
        centre: What is taken off.
        width: What is divided by.
        low: Values below are raised to it.
        high: Values above are lowered to it.
        log: Take log(1 + value - low) before centre and width; needs ``low``.
    """

    centre: float = 0.0
    width: float = 1.0
    low: float | None = None
    high: float | None = None
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.centre) and math.isfinite(self.width) and self.width > 0):
            raise UsageError(f"{self}: centre and width must be finite, and width above 0")
        if self.log and self.low is None:
            raise UsageError(f"{self}: log=True needs low, the least value of the column")

    def apply(self, values: Tensor) -> Tensor:
        """Scale a column's values, any shape; finite unless a value is infinite."""
        if self.low is not None or self.high is not None:
            values = values.clamp(self.low, self.high)  # NaN stays NaN
        if self.log:
            values = torch.log1p(values - (self.low or 0.0))
        return torch.nan_to_num((values - self.centre) / self.width, nan=0.0)


@dataclass(frozen=True)
class LinearForm:
    """What a linear model minimises over the mean of its records.

    Attributes:
        loss: By scikit-learn's name.
        ridge: r, where every record adds r/2 |w|^2; the intercept is free.
        intercept: Whether there is one.
        outputs: 1, or the number of classes of a multinomial model.
        class_weight: Of each class, by number; None for 1 each.
        epsilon: Where the Huber loss becomes linear.
    """

    loss: str
    ridge: float
    intercept: bool
    outputs: int = 1
    class_weight: tuple[float, ...] | None = None
    epsilon: float = 0.1


class LinearModel(nn.Module):
    """Scale raw columns and take one linear map, from zeros."""

    def __init__(self, scales: Mapping[str, Scale], form: LinearForm) -> None:
        """Make the untrained model."""
        super().__init__()
        self.scales = dict(scales)
        self.linear = nn.Linear(len(scales), form.outputs, bias=form.intercept)
        nn.init.zeros_(self.linear.weight)
        if form.intercept:
            nn.init.zeros_(self.linear.bias)

    def forward(self, batch: Batch) -> Tensor:
        """Return the decision function, shape (B,) or (B, K)."""
        inputs = [scale.apply(batch[name]) for name, scale in self.scales.items()]
        scores: Tensor = self.linear(torch.stack(inputs, dim=-1))
        return scores.squeeze(-1) if self.linear.out_features == 1 else scores


@dataclass(frozen=True)
class LinearTask:
    """A task made from an estimator; its methods are what a task file defines.

    Attributes:
        estimator: As given, not fitted.
        label: The column with 0 and 1, a class's number, or what is regressed.
        scales: How each column becomes an input, in the order of the coefficients.
        form: What is minimised.
    """

    estimator: Any = field(repr=False)
    label: str
    scales: Mapping[str, Scale]
    form: LinearForm

    def model(self) -> nn.Module:
        """Make the untrained model."""
        return LinearModel(self.scales, self.form)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return each record's loss and its share of the penalty, shape (B,)."""
        losses = _losses(self.form, model(batch), batch[self.label])
        if not self.form.ridge:
            return losses
        weight: Any = model.get_submodule("linear").weight  # a plain tensor under torch.func
        penalty: Tensor = self.form.ridge / 2 * weight.square().sum()
        return losses + penalty

    def metrics(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return each record's metrics: loss as a share of `LOSS_UPPER`; and whether it is right.

        For a regression the loss alone, shape (B, 1), else (B, 2). In the job file: a "mean" named
        loss with ``upper = 4.0`` and, for a classifier, a "mean" named accuracy with ``upper = 1``.
        """
        scores, label = model(batch), batch[self.label].to(torch.float32)
        losses = _losses(self.form, scores, label)
        share = torch.nan_to_num(losses / LOSS_UPPER, nan=1.0).clamp(0.0, 1.0)
        if self.form.outputs > 1:
            right = (scores.argmax(dim=-1) == label).to(share.dtype)
        elif self.form.loss in _CLASSIFIERS:
            right = ((scores > 0) == (label > 0)).to(share.dtype)
        else:
            return share.unsqueeze(-1)
        return torch.stack([share, right], dim=-1)

    def fitted(self, trained: Path | str | Mapping[str, NDArray[np.float32]]) -> Any:
        """Give the trained model as a fitted scikit-learn pipeline over the raw columns.

        Args:
            trained: A released safetensors file, or its tensors by name.

        Returns:
            ``Pipeline([("scale", ...), ("model", estimator)])``: takes arrays of shape (N, F) with
            the columns in the order of `scales`, NaN where a value is missing.

        Raises:
            UsageError: It is not a model of this task.
        """
        from sklearn.base import clone  # noqa: PLC0415 - optional: the extra sklearn
        from sklearn.pipeline import Pipeline  # noqa: PLC0415
        from sklearn.preprocessing import FunctionTransformer  # noqa: PLC0415

        coefficients, intercept = self._coefficients(trained)
        estimator: Any = clone(self.estimator)
        if self.form.loss in _CLASSIFIERS:
            estimator.classes_ = np.arange(max(_MIN_CLASSES, self.form.outputs))
        elif len(coefficients) == 1:
            coefficients, intercept = coefficients[0], intercept[:1]
        estimator.coef_ = coefficients
        estimator.intercept_ = intercept
        estimator.n_features_in_ = len(self.scales)
        scaler = FunctionTransformer(partial(scale_table, tuple(self.scales.values())))
        return Pipeline(
            [("scale", scaler.fit(np.zeros((1, len(self.scales))))), ("model", estimator)]
        )

    def _coefficients(
        self, trained: Path | str | Mapping[str, NDArray[np.float32]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        tensors = _tensors(trained)
        shape = (self.form.outputs, len(self.scales))
        weight = tensors.get("linear.weight")
        if weight is None or weight.shape != shape:
            found = None if weight is None else weight.shape
            raise UsageError(f"the file holds no linear.weight of shape {shape}: it has {found}")
        bias = tensors.get("linear.bias", np.zeros(self.form.outputs, dtype=np.float32))
        return weight.astype(np.float64), bias.astype(np.float64)


def linear_task(
    estimator: Any,
    *,
    label: str,
    columns: Mapping[str, Scale],
    records: int,
    classes: int = _MIN_CLASSES,
) -> LinearTask:
    """Make a task of an unfitted estimator.

    Args:
        estimator: LogisticRegression, SGDClassifier, SGDRegressor, Ridge or LinearRegression.
        label: The column to predict.
        columns: The inputs, each with its public scaling.
        records: Public number of records in the whole consortium; a penalty is shared by them.
        classes: How many classes a LogisticRegression tells apart.

    Raises:
        UsageError: The estimator asks for what secure sums cannot do; says what to use instead.
    """
    if records < 1 or not columns or label in columns:
        raise UsageError("give records of at least 1 and columns, the label not among them")
    kind = type(estimator).__name__
    readers = {
        "LogisticRegression": _logistic,
        "SGDClassifier": _sgd,
        "SGDRegressor": _sgd,
        "Ridge": _ridge,
        "LinearRegression": _ridge,
    }
    if kind not in readers:
        raise UsageError(
            f"{kind} is no linear model that can be trained here: {', '.join(readers)}"
        )
    settings: dict[str, Any] = estimator.get_params(deep=False)
    if classes > _MIN_CLASSES and kind != "LogisticRegression":
        raise UsageError(f"{kind} tells two classes apart here; LogisticRegression takes more")
    return LinearTask(estimator, label, dict(columns), readers[kind](settings, records, classes))


def scale_table(scales: tuple[Scale, ...], table: NDArray[np.floating]) -> NDArray[np.float32]:
    """Scale raw columns as the trained model does, shape (N, F)."""
    raw = torch.from_numpy(np.asarray(table, dtype=np.float32))
    columns = [scale.apply(raw[:, place]) for place, scale in enumerate(scales)]
    return torch.stack(columns, dim=-1).numpy()


def _logistic(settings: dict[str, Any], records: int, classes: int) -> LinearForm:
    penalty = settings.get("penalty", "l2")
    if penalty in ("l1", "elasticnet") or settings.get("l1_ratio"):
        raise UsageError("an L1 penalty has no gradient at 0: use l1_ratio=0 (the L2 penalty)")
    strength = 0.0 if penalty is None else 1 / (float(settings["C"]) * records)
    return LinearForm(
        loss="log_loss",
        ridge=strength,
        intercept=bool(settings["fit_intercept"]),
        outputs=1 if classes == _MIN_CLASSES else classes,
        class_weight=_class_weight(settings["class_weight"], classes),
    )


def _sgd(settings: dict[str, Any], records: int, classes: int) -> LinearForm:  # noqa: ARG001
    penalty, loss = settings["penalty"], str(settings["loss"])
    if penalty not in ("l2", None):
        raise UsageError("an L1 penalty has no gradient at 0: use penalty='l2' or None")
    if loss not in (*_CLASSIFIERS, "squared_error", "huber"):
        raise UsageError(f"loss={loss!r} cannot be trained here: use log_loss or squared_error")
    return LinearForm(
        loss=loss,
        ridge=float(settings["alpha"]) if penalty else 0.0,
        intercept=bool(settings["fit_intercept"]),
        class_weight=_class_weight(settings.get("class_weight"), _MIN_CLASSES),
        epsilon=float(settings["epsilon"]),
    )


def _ridge(settings: dict[str, Any], records: int, classes: int) -> LinearForm:  # noqa: ARG001
    if settings.get("positive"):
        raise UsageError("positive=True is a constraint, which sums of gradients cannot hold")
    # Ridge minimises |y - Xw|^2 + alpha |w|^2, here with one half before both.
    alpha = float(settings.get("alpha", 0.0))
    return LinearForm("squared_error", alpha / records, bool(settings["fit_intercept"]))


def _class_weight(given: object, classes: int) -> tuple[float, ...] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping) or set(given) != set(range(classes)):
        raise UsageError(
            "class_weight must give a public weight for each class, {0: ..., 1: ...}: 'balanced'"
            " would count the labels, which is a release of its own (tidegate stats)"
        )
    return tuple(float(given[number]) for number in range(classes))


def _losses(form: LinearForm, scores: Tensor, label: Tensor) -> Tensor:
    """Give each record's loss without the penalty, shape (B,)."""
    label = label.to(torch.float32)
    if form.outputs > 1:
        classes = torch.arange(form.outputs, dtype=label.dtype, device=label.device)
        chosen = (label.unsqueeze(-1) == classes).to(scores.dtype)
        losses = -(chosen * functional.log_softmax(scores, dim=-1)).sum(dim=-1)
        return losses if form.class_weight is None else losses * (chosen @ _weights(form, scores))
    losses = _binary_losses(form, scores, label)
    if form.class_weight is None:
        return losses
    light, heavy = form.class_weight
    return losses * torch.where(label > 0, heavy, light)


def _binary_losses(form: LinearForm, scores: Tensor, label: Tensor) -> Tensor:
    if form.loss == "log_loss":
        return functional.binary_cross_entropy_with_logits(scores, label, reduction="none")
    if form.loss == "squared_error":
        return (scores - label).square() / 2
    if form.loss == "huber":
        return functional.huber_loss(scores, label, reduction="none", delta=form.epsilon)
    margin = (2 * label - 1) * scores
    short = functional.relu(1 - margin)
    if form.loss == "hinge":
        return short
    if form.loss == "squared_hinge":
        return short.square()
    return torch.where(margin < -1, -4 * margin, short.square())


def _weights(form: LinearForm, like: Tensor) -> Tensor:
    return torch.tensor(form.class_weight, dtype=like.dtype, device=like.device)


def _tensors(
    trained: Path | str | Mapping[str, NDArray[np.float32]],
) -> Mapping[str, NDArray[np.float32]]:
    if isinstance(trained, Mapping):
        return trained
    from safetensors.numpy import load_file  # noqa: PLC0415 - only where a file is read

    tensors: dict[str, NDArray[np.float32]] = load_file(trained)
    return tensors
