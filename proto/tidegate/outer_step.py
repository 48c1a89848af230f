"""Step a model with a Flower strategy as the server optimiser: the same code at both ends.

The strategy is Flower's own class, unchanged. The aggregator steps inside its round; a site replays
the same step from the broadcast sum (``tidegate.replay``), so that both hold the same bits. Flower
keeps no state over a restart: moments and momentum are taken out as flat vectors, made durable with
the model version and put back.

Shapes: D = coordinates of the model vector.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
)
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import VectorSpec
from tidegate import flower_messages
from tidegate.flower_bridge import NODE_ID, assume_task_identity

Vector = NDArray[np.float32]

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


def state_fields(name: str, options: Mapping[str, float]) -> tuple[str, ...]:
    """Name what a strategy carries over from round to round: one float32 vector (D,) each.

    There is none before the first step. The model that a step starts from is no state: it is the
    published version.
    """
    if name == "FedAvgM":
        return (_MOMENTUM,) if options.get("server_momentum", 0.0) > 0 else ()
    return _MOMENTS if name in ("FedAdagrad", "FedAdam", "FedYogi") else ()


class OuterStep:
    """One job's strategy and its state.

    Attributes:
        strategy: Flower's.
        fields: What ``state`` holds after the first step.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, float],
        spec: VectorSpec,
        min_sites: int = 2,
        *,
        evaluates: bool = False,
    ) -> None:
        """Make the strategy.

        Args:
            name: One of ``tidegate.jobfile.STRATEGIES``.
            options: Passed to Flower's class.
            spec: Order and shapes of the flat vector.
            min_sites: The fewest sites that can make a cohort; the strategy is not asked for a
                sample before.
            evaluates: Whether it is asked to evaluate.

        Raises:
            UsageError: The strategy is unknown, or takes no such option.
        """
        if name not in _KINDS:
            known = ", ".join(_KINDS)
            raise UsageError(f"[strategy] name = {name!r} cannot run on secure sums; use {known}")
        self.fields = state_fields(name, options)
        self._spec = spec
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
            self.strategy = kind(**{**common, **options})
        except TypeError as error:
            raise UsageError(f"[strategy.options] does not fit {name}: {error}") from error
        assume_task_identity()

    def begin(self, global_D: Vector) -> ArrayRecord:
        """Give a version as the strategy takes it, and have the next step start from it.

        Flower's own ``configure_train`` does the same, but FedAvgM's goes on from what it rounded
        itself, not from what was published.
        """
        arrays = flower_messages.to_record(self._spec.unflatten(global_D))
        if isinstance(self.strategy, FedAvgM):
            self.strategy.current_arrays = arrays
        elif isinstance(self.strategy, FedAdagrad | FedAdam | FedYogi):
            self.strategy.current_arrays = self._spec.unflatten(global_D)
        return arrays

    def finish(
        self, round_number: int, replies: Iterable[Message]
    ) -> tuple[Vector, dict[str, float]] | None:
        """Step from where ``begin`` was; gives the next version and metrics, or None without one.

        Raises:
            PeerError: NOT_FINITE, the step left the finite numbers: no such model is published.
        """
        stepped, metrics = self.strategy.aggregate_train(round_number, replies)
        if stepped is None:
            return None
        values_D = self._spec.flatten(flower_messages.as_float32(stepped))
        if not np.isfinite(values_D).all():
            raise PeerError(
                Reason.NOT_FINITE,
                f"round {round_number}: the server optimiser left the finite numbers; lower the"
                " learning rate in [strategy.options]",
            )
        return values_D, flower_messages.plain_metrics(metrics)

    def replay(self, round_number: int, global_D: Vector, mean_D: NDArray[np.float64]) -> Vector:
        """Take the step that the aggregator took.

        Args:
            round_number: The version that the step makes, from 1.
            global_D: The version before, shape (D,).
            mean_D: Of the updates, decoded, float64, shape (D,).

        Raises:
            PeerError: NOT_FINITE, as ``finish``.
        """
        asked = Message(
            RecordDict({"arrays": self.begin(global_D), "config": ConfigRecord()}), NODE_ID, "train"
        )
        moved = self._spec.unflatten(moved_by(global_D, mean_D))
        reply = flower_messages.mean_reply(asked, moved, {flower_messages.WEIGHT_KEY: 1})
        stepped = self.finish(round_number, [reply])
        if stepped is None:
            raise PeerError(Reason.INTERNAL, f"round {round_number}: the strategy gave no model")
        return stepped[0]

    def state(self) -> dict[str, Vector]:
        """Return what the next step needs of this one: each of ``fields``, or none so far."""
        flat: dict[str, Vector] = {}
        for field in self.fields:
            held = getattr(self.strategy, field)
            if held is None:
                continue
            arrays = held.values() if isinstance(held, dict) else held  # FedAvgM's is a list
            named = {
                tensor.name: np.asarray(array)  # of a tensor without dimensions, a mere number
                for tensor, array in zip(self._spec.tensors, arrays, strict=True)
            }
            flat[field] = self._spec.flatten(named)
        return flat

    def restore(self, state: Mapping[str, Vector]) -> None:
        """Take a state back, exactly; the vectors must not change any more.

        Raises:
            UsageError: It is of another strategy or spec.
        """
        if state.keys() not in (set(), set(self.fields)):
            raise UsageError(f"the strategy state holds {sorted(state)}, not {self.fields}")
        for field, flat_D in state.items():
            try:
                named = self._spec.unflatten(flat_D)
            except PeerError as error:
                raise UsageError(f"the strategy state does not fit: {error}") from error
            setattr(
                self.strategy, field, list(named.values()) if field == _MOMENTUM else dict(named)
            )


def moved_by(global_D: Vector, mean_D: NDArray[np.float64]) -> Vector:
    """Give the mean model that the sites' updates amount to: rounded once, to float32."""
    return (global_D + mean_D).astype(np.float32)
