"""Tell handwritten digits apart by an MLP of two hidden layers: the model of the traffic benchmark.

A Tidegate task. The benchmark sets INPUTS, FIRST and SECOND anew: 784, 1536 and 1024 make 11.2 MB
of float32; 64, 96 and 64 make 52 kB.

Shapes: B = records.
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

Batch = Mapping[str, Tensor]

INPUTS = 784
FIRST = 1536
SECOND = 1024
CLASSES = 10
COLUMNS = ("pixels", "digit")


class Digits(nn.Module):
    """Map pixels to one score a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(INPUTS, FIRST),
            nn.ReLU(),
            nn.Linear(FIRST, SECOND),
            nn.ReLU(),
            nn.Linear(SECOND, CLASSES),
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return scores, shape (B, CLASSES)."""
        scores: Tensor = self.layers(batch["pixels"])
        return scores


def model() -> nn.Module:
    """Make the untrained model."""
    return Digits()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy of each record, shape (B,), in nats."""
    return functional.cross_entropy(model(batch), batch["digit"], reduction="none")
