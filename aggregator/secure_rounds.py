"""Say what a round is to whoever turns sums into models: invitations go out, one mean comes back.

Shapes: D = coordinates of the model vector, U = coordinates of the update vector (D for training).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidegate.messages import TRAIN, is_evaluation


@dataclass(frozen=True)
class Instruction:
    """What the sites of a round are asked for.

    Attributes:
        purpose: ``TRAIN`` or ``EVALUATE``; a Flower app's own action may follow a dot.
        config: A Flower message's settings (``tidegate.flower_config``); empty for other work.
    """

    purpose: str = TRAIN
    config: bytes = b""

    @property
    def evaluates(self) -> bool:
        """Say whether only metrics are summed, and no model follows."""
        return is_evaluation(self.purpose)


TRAINING = Instruction()
"""What work other than Flower's asks for."""


@dataclass(frozen=True)
class SecureMean:
    """What a round's secure sum gives.

    Attributes:
        values_U: Decoded sum over the job's public divisor, float64, shape (U,); (0,) after an
            evaluation, whose sum holds metrics only.
        metrics: Read from the noised metric sums; may be empty.
        noise_std: Standard deviation of the noise in each value, that of all survivors; 0 in mode
            none.
    """

    values_U: NDArray[np.float64] = field(repr=False)
    metrics: Mapping[str, float]
    noise_std: float = 0.0


@dataclass(frozen=True)
class GlobalModel:
    """A model version before it has a name.

    Attributes:
        values_D: Flat parameters in the order of the spec, float32, finite.
        metrics: What is shown of the round.
    """

    values_D: NDArray[np.float32] = field(repr=False)
    metrics: Mapping[str, float]


class SecureRounds(Protocol):
    """What carries rounds out; both calls block the job's thread."""

    def wait_for_nodes(self) -> list[int]:
        """Return the node ids of the connected sites, once there are enough for a cohort."""
        ...

    def run_round(
        self, node_ids: list[int], instruction: Instruction = TRAINING
    ) -> SecureMean | None:
        """Run one round with these sites invited; None where the round was given up."""
        ...


class ServerStep(Protocol):
    """What makes the next model version out of a round: one for each kind of work."""

    def step(
        self, round_number: int, global_D: NDArray[np.float32], rounds: SecureRounds
    ) -> GlobalModel | None:
        """Run one round from a model version; blocks.

        Args:
            round_number: From 1.
            global_D: The current model version, shape (D,).
            rounds: Carries the round out.

        Returns:
            The next model, or None where the round was given up.

        Raises:
            PeerError: NOT_FINITE, the step left the finite numbers: no such model is published.
        """
        ...

    def state(self) -> bytes:
        """Return what the next round needs of this one; made durable with the version."""
        ...

    def restore(self, state: bytes) -> None:
        """Take a state back, exactly.

        Raises:
            UsageError: It is not one of this job.
        """
        ...
