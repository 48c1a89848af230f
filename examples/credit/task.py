"""Score credit risk: will a customer be 90 days late within two years?

A Tidegate task: ``model()``, ``loss(model, batch)`` and ``metrics(model, batch)``, each record on
its own. A batch maps column names (`COLUMNS`) to float32 tensors of shape (B,) with NaN where a
value is missing. Scaling and imputation are part of the model and use only the constants written
here, which come from what the columns mean: a statistic of the data would leave a bank uncharged,
but for those that a statistics job published and charged (`published`).
There is no control flow on values and nothing crosses records, so everything runs under
``torch.func.vmap``.

Shapes: B = records, F = scaled inputs, M = metric coordinates.
"""

import math
from collections.abc import Mapping

import published
import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = Mapping[str, Tensor]

TARGET = "default"
LATE = ("late_30_59", "late_60_89", "late_90")
COLUMNS = (
    TARGET,
    "utilisation",
    "age",
    "late_30_59",
    "debt_ratio",
    "income",
    "open_lines",
    "late_90",
    "property_loans",
    "late_60_89",
    "dependents",
)

INPUTS = 22
HIDDEN = (128, 20)

# Public bounds. Counts of 96 and 98 are codes of the credit bureau, not counts.
CODE_ABOVE = 90.0
MAX_LATE = 12.0
MAX_UTILISATION = 1.5
AGE_RANGE = (20.0, 100.0)
INCOME_RANGE = (100.0, 100_000.0)
TYPICAL_INCOME = 5_000.0
MAX_DEBT_RATIO = 3.0
MAX_DEBT = 100_000.0
MAX_OPEN_LINES = 40.0
MAX_PROPERTY_LOANS = 10.0
MAX_DEPENDENTS = 8.0

# What job.toml declares under [[metrics]].
LOSS_UPPER = 4.0
AUC_BINS = 20
SCORE_RANGE = (-8.0, 2.0)


# An app that ships scaling.toml scales by what its sites published, noised and charged, in place
# of the constants above; columns that the file does not name keep them.
SCALING = published.read_scaling()


class CreditMlp(nn.Module):
    """Map raw columns to the log-odds of default: public scaling, then a tanh MLP."""

    def __init__(self) -> None:
        super().__init__()
        first, second = HIDDEN
        self.layers = nn.Sequential(
            nn.Linear(INPUTS, first),
            nn.Tanh(),
            nn.Linear(first, second),
            nn.Tanh(),
            nn.Linear(second, 1),
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, shape (B,)."""
        logits: Tensor = self.layers(scale(batch))
        return logits.squeeze(-1)


def model() -> nn.Module:
    """Make the untrained model: 5,545 parameters, no buffers."""
    return CreditMlp()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the log loss of each record, shape (B,), in nats."""
    logits: Tensor = model(batch)
    return functional.binary_cross_entropy_with_logits(logits, batch[TARGET], reduction="none")


def metrics(model: nn.Module, batch: Batch) -> Tensor:
    """Return each record's metric blocks in the order of job.toml, shape (B, M), M = 41.

    Two blocks, each of L2 norm at most 1: the loss as a share of `LOSS_UPPER`, cut at 1; and a
    one-hot over (label, score bin), the negatives' bins first, in ascending order of score. A
    record whose score is not a number counts nowhere.
    """
    logits: Tensor = model(batch)
    label = batch[TARGET]
    losses = functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
    share = torch.nan_to_num(losses / LOSS_UPPER, nan=1.0).clamp(0.0, 1.0)
    low, high = SCORE_RANGE
    score_bin = ((logits - low) / (high - low) * AUC_BINS).floor().clamp(0, AUC_BINS - 1)
    place = score_bin + AUC_BINS * (label > 0.5).to(logits.dtype)
    places = torch.arange(2 * AUC_BINS, dtype=logits.dtype, device=logits.device)
    one_hot = (place.unsqueeze(-1) == places).to(logits.dtype)
    return torch.cat([share.unsqueeze(-1), one_hot], dim=-1)


def scale(batch: Batch) -> Tensor:
    """Scale raw columns to about [-2, 2] with public constants, shape (B, F), finite for any input.

    Amounts are put on a log scale between public bounds; a missing value becomes a constant, and
    for the income, which one customer in five does not give, an indicator says so.
    """
    inputs = [
        *_utilisation(batch["utilisation"]),
        _published("age", batch, (_within(batch["age"], AGE_RANGE, missing=50.0) - 50.0) / 15.0),
        *_late_payments(batch),
        *_income_and_debt(batch["income"], batch["debt_ratio"]),
        *(_published(name, batch, default) for name, default in _counts(batch).items()),
    ]
    return torch.stack(inputs, dim=-1)


def _counts(batch: Batch) -> dict[str, Tensor]:
    return {
        "open_lines": _log_count(batch["open_lines"], MAX_OPEN_LINES) - 2.0,
        "property_loans": _log_count(batch["property_loans"], MAX_PROPERTY_LOANS) - 0.7,
        "dependents": _log_count(batch["dependents"], MAX_DEPENDENTS, missing=0.5) - 0.4,
    }


def _published(column: str, batch: Batch, default: Tensor) -> Tensor:
    """Standardise a column by its published mean and deviation; the default where there is none."""
    known = SCALING.get(column)
    if known is None:
        return default
    bounds, mean = (known["low"], known["high"]), known["mean"]
    centred: Tensor = _within(batch[column], bounds, missing=mean) - mean
    return centred / known["std"]


def _within(values: Tensor, bounds: tuple[float, float], missing: float) -> Tensor:
    """Replace missing values by a constant, then clamp to public bounds; infinities included."""
    return torch.nan_to_num(values, nan=missing).clamp(*bounds)


def _log_count(values: Tensor, most: float, missing: float = 0.0) -> Tensor:
    return torch.log1p(_within(values, (0.0, most), missing))


def _utilisation(values: Tensor) -> list[Tensor]:
    """Scale the share of the credit limits in use: above 1 over the limit, above 10 an amount."""
    used = _within(values, (0.0, 1e6), missing=0.3)
    share = used.clamp(max=1.0)
    return [
        2.0 * used.clamp(max=MAX_UTILISATION) - 1.0,
        2.0 * torch.sqrt(share) - 1.0,
        2.0 * torch.log1p(100.0 * share) / math.log(101.0) - 1.0,
        (used > 1.0).to(values.dtype),
        (used > 10.0).to(values.dtype),
    ]


def _late_payments(batch: Batch) -> list[Tensor]:
    inputs: list[Tensor] = []
    total = torch.zeros_like(batch[LATE[0]])
    coded = total
    for column in LATE:
        raw = torch.nan_to_num(batch[column], nan=0.0)
        is_code = raw > CODE_ABOVE
        count = torch.where(is_code, 0.0, raw).clamp(0.0, MAX_LATE)
        coded = torch.maximum(coded, is_code.to(raw.dtype))
        total = total + count
        inputs += [torch.log1p(count), (count > 0).to(raw.dtype)]
    return [*inputs, (total > 0).to(total.dtype), torch.log1p(total), coded]


def _income_and_debt(income: Tensor, debt_ratio: Tensor) -> list[Tensor]:
    """Scale income and debt; where the income is missing or nil the "ratio" is an amount."""
    low, high = INCOME_RANGE
    unknown = torch.nan_to_num(income, nan=0.0) < low
    known_income = _within(income, (low, high), missing=TYPICAL_INCOME)
    ratio = 2.0 * torch.log1p(_within(debt_ratio, (0.0, MAX_DEBT_RATIO), missing=0.4)) - 0.7
    amount = torch.log1p(_within(debt_ratio, (0.0, MAX_DEBT), missing=400.0)) / 3.0 - 2.0
    return [
        torch.where(unknown, 0.0, torch.log(known_income / TYPICAL_INCOME)),
        unknown.to(income.dtype),
        torch.where(unknown, 0.0, ratio),
        torch.where(unknown, amount, 0.0),
    ]
