"""Publish the sums of a statistics job as its model: one round, no optimiser.

Shapes: U = sums, D = U + 1: the sums and the standard deviation of the noise in each.
"""

import numpy as np
from numpy.typing import NDArray

from aggregator.secure_rounds import GlobalModel, SecureRounds
from privacy.errors import UsageError


class StatisticsStep:
    """See ``secure_rounds.ServerStep``; it keeps no state."""

    def step(
        self,
        round_number: int,  # noqa: ARG002 - the protocol's; there is one round
        global_D: NDArray[np.float32],  # noqa: ARG002 - nothing is stepped from
        rounds: SecureRounds,
    ) -> GlobalModel | None:
        """Run the one round with all sites that are there; blocks.

        Args:
            round_number: 1.
            global_D: Not looked at.
            rounds: Carries the round out.

        Returns:
            The sums as a model; None where the round was given up.
        """
        mean = rounds.run_round(rounds.wait_for_nodes())
        if mean is None:
            return None
        values_D = np.append(mean.values_U, mean.noise_std).astype(np.float32)
        metrics = {"records": float(mean.values_U[0]), "records_error": mean.noise_std}
        return GlobalModel(values_D, metrics)

    def state(self) -> bytes:
        """Return nothing: one round needs no other."""
        return b""

    def restore(self, state: bytes) -> None:
        """Refuse any state.

        Raises:
            UsageError: There is one.
        """
        if state:
            raise UsageError("a statistics job keeps no state between rounds")
