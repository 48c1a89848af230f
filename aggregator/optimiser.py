"""Stage 12: step the global model with a Flower strategy as the server optimiser.

The strategy is Flower's own class, unchanged; only the loop around it is ours, because Flower's
restarts at round 1 and keeps no state: FedAdam's moments are taken out after each round, made
durable with the model version, and put back on a restart, so that a resumed job takes exactly the
steps that an undisturbed one takes.
"""

from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from numpy.typing import NDArray
from safetensors.numpy import load, save

from aggregator import flower_messages
from aggregator.secure_grid import SecureGrid
from aggregator.secure_rounds import GlobalModel, SecureRounds
from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import VectorSpec
from tidegate.flower_bridge import assume_task_identity

Vector = NDArray[np.float32]

_STATE_FIELDS = {"FedAvg": (), "FedAdam": ("m_t", "v_t")}
"""By strategy: its attributes that carry over from round to round, dicts of arrays by tensor."""


class Optimiser:
    """One job's strategy and its state."""

    def __init__(
        self, name: str, options: Mapping[str, float], spec: VectorSpec, min_sites: int
    ) -> None:
        """Make the strategy.

        Args:
            name: "FedAvg" or "FedAdam".
            options: Passed to Flower's class.
            spec: Order and shapes of the flat vector.
            min_sites: The fewest sites that can make a cohort; the strategy is not asked for a
                sample before.

        Raises:
            UsageError: The strategy is unknown, or takes no such option.
        """
        if name not in _STATE_FIELDS:
            known = ", ".join(_STATE_FIELDS)
            raise UsageError(f"[strategy] name = {name!r} cannot run on secure sums; use {known}")
        self._name = name
        self._spec = spec
        common = {
            "fraction_train": 1.0,
            "fraction_evaluate": 0.0,
            "min_train_nodes": min_sites,
            "min_available_nodes": min_sites,
            "weighted_by_key": flower_messages.WEIGHT_KEY,
        }
        # A learning rate other than 1 is FedAvgM with no momentum in Flower, and keeps no state.
        kinds: dict[str, Callable[..., FedAvg]] = {"FedAdam": FedAdam}
        kinds["FedAvg"] = FedAvgM if options else FedAvg
        try:
            self._strategy = kinds[name](**common, **options)
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
        grid = SecureGrid(rounds, self._spec, global_D)
        arrays = flower_messages.to_record(self._spec.unflatten(global_D))
        if isinstance(self._strategy, FedAvgM):
            self._strategy.current_arrays = arrays  # what was published, not what was rounded
        instructions = self._strategy.configure_train(round_number, arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(instructions))
        if not replies:
            return None
        stepped, metrics = self._strategy.aggregate_train(round_number, replies)
        if stepped is None:
            return None
        named = {
            name: array.astype(np.float32, copy=False)
            for name, array in flower_messages.from_record(stepped).items()
        }
        values_D = self._spec.flatten(named)
        if not np.isfinite(values_D).all():
            raise PeerError(
                Reason.NOT_FINITE,
                f"round {round_number}: the server optimiser left the finite numbers; lower the"
                " learning rate in [strategy.options]",
            )
        return GlobalModel(values_D, _plain(metrics or {}))

    def state(self) -> bytes:
        """Return what the next round needs of this one, as safetensors."""
        tensors: dict[str, NDArray[np.floating]] = {}
        for attribute in _STATE_FIELDS[self._name]:
            for name, array in (getattr(self._strategy, attribute) or {}).items():
                tensors[f"{attribute}/{name}"] = np.asarray(array, order="C")
        return save(tensors, {"strategy": self._name})

    def restore(self, state: bytes) -> None:
        """Take a state back, exactly.

        Raises:
            UsageError: It is of another strategy or spec.
        """
        tensors = load(state)
        shapes = {tensor.name: tensor.shape for tensor in self._spec.tensors}
        restored: dict[str, dict[str, NDArray[np.floating]]] = {}
        for key, array in tensors.items():
            attribute, _, name = key.partition("/")
            fits = attribute in _STATE_FIELDS[self._name] and shapes.get(name) == array.shape
            if not fits:
                raise UsageError(f"the strategy state holds {key!r}, which {self._name} has not")
            restored.setdefault(attribute, {})[name] = array
        for attribute, arrays in restored.items():
            if arrays.keys() != shapes.keys():
                raise UsageError(f"the strategy state lacks tensors of {attribute}")
            setattr(self._strategy, attribute, {name: arrays[name] for name in shapes})


def _plain(metrics: Mapping[str, object]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
