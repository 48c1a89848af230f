"""Stage 12: step the global model with a Flower strategy as the server optimiser.

The strategy is Flower's own class, unchanged; only the loop around it is ours, because Flower's
restarts at round 1 and keeps no state: moments and momentum are taken out after each round, made
durable with the model version, and put back on a restart, so that a resumed job takes exactly the
steps that an undisturbed one takes. The step itself is ``tidegate.outer_step``, which sites replay.
"""

from collections.abc import Mapping

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from aggregator.secure_grid import GridCall, GridMean, SecureGrid
from aggregator.secure_rounds import GlobalModel, Instruction, SecureRounds
from privacy.errors import UsageError
from privacy.spec import VectorSpec
from tidegate import flower_messages
from tidegate.jobfile import FlowerApp
from tidegate.outer_step import OuterStep, moved_by

Vector = NDArray[np.float32]


class Optimiser:
    """One job's strategy and its state."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, float],
        spec: VectorSpec,
        min_sites: int,
        app: FlowerApp | None = None,
    ) -> None:
        """Make the strategy.

        Args:
            name: One of ``tidegate.jobfile.STRATEGIES``.
            options: Passed to Flower's class.
            spec: Order and shapes of the flat vector.
            min_sites: The fewest sites that can make a cohort; the strategy is not asked for a
                sample before.
            app: The Flower app that the sites run; its messages' settings travel. None for tasks.

        Raises:
            UsageError: The strategy is unknown, or takes no such option.
        """
        self._spec = spec
        self._app = app
        evaluates = app is not None and app.evaluate_every > 0
        self._outer = OuterStep(name, options, spec, min_sites, evaluates=evaluates)
        self._strategy = self._outer.strategy

    def step(self, round_number: int, global_D: Vector, rounds: SecureRounds) -> GlobalModel | None:
        """Run one round: configure, exchange over a secure grid, aggregate.

        Blocks until the round is over; runs in the job's own thread.

        Args:
            round_number: From 1; FedAdam's bias correction depends on it.
            global_D: The current model version, shape (D,).
            rounds: Carries the round out.

        Returns:
            The next model, or None where the round was given up.

        Raises:
            PeerError: NOT_FINITE, the step left the finite numbers: no such model is published.
        """
        grid, arrays = self._grid(rounds, global_D), self._outer.begin(global_D)
        settings = ConfigRecord(dict(self._app.train_config) if self._app else {})
        instructions = self._strategy.configure_train(round_number, arrays, settings, grid)
        replies = grid.send_and_receive(instructions)
        stepped = self._outer.finish(round_number, replies) if replies else None
        return None if stepped is None else GlobalModel(*stepped)

    def evaluate(
        self, round_number: int, global_D: Vector, rounds: SecureRounds
    ) -> dict[str, float] | None:
        """Let the sites evaluate a model version, and aggregate their metrics.

        Args:
            round_number: The round that made the version.
            global_D: The version, shape (D,).
            rounds: Carries the exchange out.

        Returns:
            The metrics, or None where the exchange was given up.
        """
        grid, arrays = self._grid(rounds, global_D), self._outer.begin(global_D)
        settings = ConfigRecord(dict(self._app.evaluate_config) if self._app else {})
        instructions = self._strategy.configure_evaluate(round_number, arrays, settings, grid)
        replies = grid.send_and_receive(instructions)
        if not replies:
            return None
        metrics = self._strategy.aggregate_evaluate(round_number, replies)
        return flower_messages.plain_metrics(metrics)

    def state(self) -> bytes:
        """Return what the next round needs of this one, as safetensors."""
        return save(self._outer.state())

    def restore(self, state: bytes) -> None:
        """Take a state back, exactly.

        Raises:
            UsageError: It is of another strategy or spec.
        """
        try:
            vectors = load(state)
        except SafetensorError as error:
            raise UsageError(f"the strategy state cannot be read: {error}") from error
        self._outer.restore(vectors)

    def _grid(self, rounds: SecureRounds, global_D: Vector) -> SecureGrid:
        return SecureGrid(_FromVersion(rounds, self._spec, global_D, tells=self._app is not None))


class _FromVersion:
    """Carries a grid's calls out as rounds from one published version."""

    def __init__(
        self, rounds: SecureRounds, spec: VectorSpec, global_D: Vector, *, tells: bool
    ) -> None:
        self._rounds = rounds
        self._spec = spec
        self._global_D = global_D
        self._tells = tells

    def wait_for_nodes(self) -> list[int]:
        return self._rounds.wait_for_nodes()

    def exchange(self, call: GridCall) -> GridMean | None:
        """Run a round; the arrays are the version's, as the sites download it."""
        asked = call.instruction if self._tells else Instruction(call.instruction.purpose)
        mean = self._rounds.run_round(call.node_ids, asked)
        if mean is None:
            return None
        if call.instruction.evaluates:
            return GridMean(None, mean.metrics)
        mean_D = moved_by(self._global_D, mean.values_U)
        return GridMean(self._spec.unflatten(mean_D), mean.metrics)
