"""Say how hard an audit tries."""

from dataclasses import dataclass

from privacy.errors import UsageError


@dataclass(frozen=True)
class Effort:
    """How hard the attacks try; more finds more, and takes longer.

    Attributes:
        trials: Independent batches of victims for each attack.
        iterations: Steps of the attacks that optimise (A3, A5).
        restarts: First guesses of these attacks.

    Raises:
        UsageError: One of them is below 1.
    """

    trials: int = 4
    iterations: int = 600
    restarts: int = 4

    def __post_init__(self) -> None:
        if min(self.trials, self.iterations, self.restarts) < 1:
            raise UsageError("an audit needs at least one trial, iteration and start")
