"""Stage 12: step the global model with a Flower strategy as the server optimiser.

The strategy is Flower's own class, unchanged; only the loop around it is ours, because Flower's
restarts at round 1 and keeps no state: moments and momentum are taken out after each round, made
durable with the model version, and put back on a restart, so that a resumed job takes exactly the
steps that an undisturbed one takes.
"""

from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
)
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from aggregator import flower_messages
from aggregator.secure_grid import GridCall, GridMean, SecureGrid
from aggregator.secure_rounds import GlobalModel, Instruction, SecureRounds
from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import VectorSpec
from tidegate.flower_bridge import assume_task_identity
from tidegate.jobfile import FlowerApp

Vector = NDArray[np.float32]
Arrays = dict[str, NDArray[np.floating]]

_KINDS: dict[str, Callable[..., FedAvg]] = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "FedAvgM": FedAvgM,
    "FedAdagrad": FedAdagrad,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
}
_MOMENTS = ("m_t", "v_t")
_MOMENTUM = "momentum_vector"
_STATE_FIELDS = {
    "FedAvg": (),
    "FedProx": (),
    "FedAvgM": (_MOMENTUM,),
    "FedAdagrad": _MOMENTS,
    "FedAdam": _MOMENTS,
    "FedYogi": _MOMENTS,
}
"""By strategy: its attributes that carry over from round to round, arrays by tensor.

The model that a step starts from is no state: it is the published version, set before each round.
"""


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
        if name not in _KINDS:
            known = ", ".join(_KINDS)
            raise UsageError(f"[strategy] name = {name!r} cannot run on secure sums; use {known}")
        self._name = name
        self._spec = spec
        self._app = app
        evaluates = app is not None and app.evaluate_every > 0
        common = {
            "fraction_train": 1.0,
            "fraction_evaluate": 1.0 if evaluates else 0.0,
            "min_train_nodes": min_sites,
            "min_evaluate_nodes": min_sites,
            "min_available_nodes": min_sites,
            "weighted_by_key": flower_messages.WEIGHT_KEY,
        }
        # A learning rate other than 1 is FedAvgM with no momentum in Flower, and keeps no state.
        scaled = name == "FedAvg" and "server_learning_rate" in options
        kind = _KINDS["FedAvgM" if scaled else name]
        try:
            self._strategy = kind(**{**common, **options})
        except TypeError as error:
            raise UsageError(f"[strategy.options] does not fit {name}: {error}") from error
        assume_task_identity()

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
        grid, arrays = self._grid(global_D, rounds)
        if isinstance(self._strategy, FedAvgM):
            self._strategy.current_arrays = arrays  # what was published, not what was rounded
        settings = ConfigRecord(dict(self._app.train_config) if self._app else {})
        instructions = self._strategy.configure_train(round_number, arrays, settings, grid)
        replies = grid.send_and_receive(instructions)
        if not replies:
            return None
        stepped, metrics = self._strategy.aggregate_train(round_number, replies)
        if stepped is None:
            return None
        values_D = self._spec.flatten(flower_messages.as_float32(stepped))
        if not np.isfinite(values_D).all():
            raise PeerError(
                Reason.NOT_FINITE,
                f"round {round_number}: the server optimiser left the finite numbers; lower the"
                " learning rate in [strategy.options]",
            )
        return GlobalModel(values_D, flower_messages.plain_metrics(metrics))

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
        grid, arrays = self._grid(global_D, rounds)
        settings = ConfigRecord(dict(self._app.evaluate_config) if self._app else {})
        instructions = self._strategy.configure_evaluate(round_number, arrays, settings, grid)
        replies = grid.send_and_receive(instructions)
        if not replies:
            return None
        metrics = self._strategy.aggregate_evaluate(round_number, replies)
        return flower_messages.plain_metrics(metrics)

    def _grid(self, global_D: Vector, rounds: SecureRounds) -> tuple[SecureGrid, ArrayRecord]:
        carried = _FromVersion(rounds, self._spec, global_D, tells=self._app is not None)
        return SecureGrid(carried), flower_messages.to_record(self._spec.unflatten(global_D))

    def state(self) -> bytes:
        """Return what the next round needs of this one, as safetensors."""
        tensors: Arrays = {}
        for attribute in _STATE_FIELDS[self._name]:
            held = getattr(self._strategy, attribute)
            if held is not None and not isinstance(held, dict):  # FedAvgM's is a list in order
                names = (tensor.name for tensor in self._spec.tensors)
                held = dict(zip(names, held, strict=True))
            for name, array in (held or {}).items():
                tensors[f"{attribute}/{name}"] = np.asarray(array, order="C")
        return save(tensors, {"strategy": self._name})

    def restore(self, state: bytes) -> None:
        """Take a state back, exactly.

        Raises:
            UsageError: It is of another strategy or spec.
        """
        try:
            tensors = load(state)
        except SafetensorError as error:
            raise UsageError(f"the strategy state cannot be read: {error}") from error
        shapes = {tensor.name: tensor.shape for tensor in self._spec.tensors}
        restored: dict[str, Arrays] = {}
        for key, array in tensors.items():
            attribute, _, name = key.partition("/")
            fits = attribute in _STATE_FIELDS[self._name] and shapes.get(name) == array.shape
            if not fits:
                raise UsageError(f"the strategy state holds {key!r}, which {self._name} has not")
            restored.setdefault(attribute, {})[name] = array
        for attribute, arrays in restored.items():
            if arrays.keys() != shapes.keys():
                raise UsageError(f"the strategy state lacks tensors of {attribute}")
            named = {name: arrays[name] for name in shapes}
            held = list(named.values()) if attribute == _MOMENTUM else named
            setattr(self._strategy, attribute, held)


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
        mean_D = (self._global_D + mean.values_U).astype(np.float32)
        return GridMean(self._spec.unflatten(mean_D), mean.metrics)
