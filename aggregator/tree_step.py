"""Make the next model version of boosted trees out of each round's sum.

There is nothing to keep from round to round but the model version itself, so a resumed job grows
the trees that an undisturbed one grows.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggregator.secure_rounds import GlobalModel, SecureRounds
from aggregator.tree_growth import base_margin, grow, moved_to
from aggregator.tree_splits import GrowthRules
from privacy.errors import PeerError, Reason, UsageError
from tidegate.jobfile.work_kinds import Trees
from tidegate.tree_layout import CURVATURE_WEIGHT, TreeLayout
from tidegate.tree_model import NO_SPLIT, TreeModel


class TreeStep:
    """The server step of a trees job; see ``secure_rounds.ServerStep``."""

    def __init__(self, trees: Trees) -> None:
        """Take what the job grows."""
        self._layout = TreeLayout(trees)

    def step(
        self, round_number: int, global_D: NDArray[np.float32], rounds: SecureRounds
    ) -> GlobalModel | None:
        """Take one sum and grow what it is of: a level, or a whole tree.

        Args:
            round_number: From 1: sums are taken in order, one a round.
            global_D: The current model version.
            rounds: Carries the round out.

        Raises:
            PeerError: NOT_FINITE: the sum is no number.
        """
        opened = rounds.run_round(rounds.wait_for_nodes())
        if opened is None:
            return None
        sums_U = opened.values_U
        if not np.isfinite(sums_U).all():
            raise PeerError(Reason.NOT_FINITE, f"round {round_number}: the sum is not finite")
        layout, rules = self._layout, self._rules(opened.noise_std)
        model = TreeModel.from_vector(layout.trees, global_D)
        turn = layout.turn(round_number - 1)
        if round_number == 1:
            margin = base_margin(layout, turn, sums_U)
            model = replace(model, base_margin=margin)
            sums_U, rules = moved_to(margin, sums_U, rules)
        splits = grow(model, layout, turn, sums_U, rules)
        metrics = {"tree": turn.tree + 1.0, "level": turn.level + 1.0, "splits": float(splits)}
        metrics["splits_total"] = float(np.count_nonzero(model.feature_TI != NO_SPLIT))
        return GlobalModel(model.to_vector(), metrics)

    def _rules(self, noise_sd: float) -> GrowthRules:
        trees = self._layout.trees
        return GrowthRules(
            learning_rate=trees.learning_rate,
            l2=trees.l2,
            min_weight=trees.min_weight,
            min_gain=trees.min_gain,
            gradient_sd=noise_sd,
            curvature_sd=noise_sd / CURVATURE_WEIGHT,
        )

    def state(self) -> bytes:
        """Return nothing: the model version says it all."""
        return b""

    def restore(self, state: bytes) -> None:
        """Refuse a state, for there is none.

        Raises:
            UsageError: It is of another job.
        """
        if state:
            raise UsageError("the stored state is not one of boosted trees, which have none")
