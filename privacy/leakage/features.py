"""A5, where the app prepares its columns: find what the first layer sees of each record.

Apps scale, cut and combine columns before a layer sees them; bounds are often far wider than what
the app looks at, and an attack on raw columns then sees nothing where the prepared row lies open.
So the row is looked for where the gradient speaks of it, at the input of the first fully connected
layer. A cell is one number of that input: right when nearer than 0.319 of its deviation over
made-up records. Numbers that take a few values only are brought to the nearest of these.

Shapes: N = records, F = features of the layer, P = made-up records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privacy.leakage.candidates import Candidate
from privacy.leakage.cells import ATTACK, Cells, cells_finding
from privacy.leakage.effort import Effort
from privacy.leakage.fields import Batch, Field
from privacy.leakage.first_layer import FirstLayer, find_first_layer, inputs_of
from privacy.leakage.matching import Search, search
from privacy.leakage.release import Release
from privacy.leakage.scene import Scene
from privacy.leakage.scores import matched_cells
from privacy.leakage.tables import pooled, unknown_columns
from privacy.leakage.verdict import (
    Finding,
    Metric,
    not_applicable,
)

TITLE = "Gradient matching of what the first layer sees"
_COLUMN = "tidegate-first-layer"
_NEAR = 0.319
_PRIOR = 512
_FEW = 8
_RATE = 0.1
_GUESSES = 32


@dataclass(frozen=True)
class _Prior:
    """What is known of the layer's inputs without a record: made-up records show it."""

    rows_PF: Tensor
    low_F: Tensor
    span_F: Tensor
    spread_F: Tensor

    @classmethod
    def of(cls, rows_PF: Tensor) -> "_Prior":
        low_F = rows_PF.min(dim=0).values
        return cls(rows_PF, low_F, rows_PF.max(dim=0).values - low_F, rows_PF.std(dim=0))

    @property
    def varying_F(self) -> Tensor:
        """Say which features tell records apart."""
        return self.span_F > 0

    def placed(self, unit_NF: Tensor) -> Tensor:
        """Place shares of the range in the range of each feature."""
        return self.low_F + self.span_F * unit_NF

    def shares(self, rows_NF: Tensor) -> Tensor:
        """Invert `placed`; 0 where a feature never varies."""
        return ((rows_NF - self.low_F) / self.span_F.clamp_min(1e-12)).clamp(0, 1)

    def snapped(self, rows_NF: Tensor) -> Tensor:
        """Bring features that take few values to the nearest one."""
        snapped = rows_NF.clone()
        for place in range(rows_NF.shape[1]):
            values = self.rows_PF[:, place].unique()
            if len(values) <= _FEW:
                nearest = (rows_NF[:, place, None] - values).abs().argmin(dim=1)
                snapped[:, place] = values[nearest]
        return snapped

    def right(self, found_NF: Tensor, true_NF: Tensor) -> NDArray[np.bool_]:
        """Say which cells of which reconstruction are right for which original, (N, N, F)."""
        keep_F = self.varying_F
        away = (found_NF[:, None, keep_F] - true_NF[None, :, keep_F]).abs()
        near: NDArray[np.bool_] = (away < _NEAR * self.spread_F[keep_F]).cpu().numpy()
        return near


def attack_features(
    releases: Sequence[Release], effort: Effort, source: torch.Generator
) -> list[Finding]:
    """Look for the first layer's inputs behind each release; targets are taken as known.

    Args:
        releases: Independent victims of one exposure.
        effort: How hard to try.
        source: Where first guesses and made-up records come from.
    """
    scene, exposure = releases[0].scene, releases[0].exposure
    layer = find_first_layer(scene)
    reason = layer if isinstance(layer, str) else "no column but pictures, tokens and targets"
    if isinstance(layer, str) or not unknown_columns(scene):
        return [not_applicable(ATTACK, TITLE, exposure, Metric.CELLS, reason)]
    prior = _Prior.of(inputs_of(scene, layer, scene.draw(_PRIOR, source)))
    if not bool(prior.varying_F.any()):
        reason = "made-up records all look the same to the first layer"
        return [not_applicable(ATTACK, TITLE, exposure, Metric.CELLS, reason)]
    originals, found, right, guesses = [], [], [], []
    for release in releases:
        true_NF = inputs_of(scene, layer, release.batch)
        guess_NF = prior.snapped(_reconstruct(release, layer, prior, effort, source))
        right_NNF = prior.right(guess_NF, true_NF)
        pairs = matched_cells(right_NNF)
        originals.append(true_NF.cpu().numpy())
        found.append(guess_NF.cpu().numpy()[pairs])
        right.append(right_NNF[pairs, np.arange(len(pairs))])
        guesses.append([_guess(release, layer, prior, true_NF, source) for _ in range(_GUESSES)])
    blind = [np.concatenate(trials) for trials in zip(*guesses, strict=True)]
    keep = np.flatnonzero(prior.varying_F.cpu().numpy())
    cells = Cells(
        tuple(f"{layer.name}[{place}]" for place in keep),
        np.concatenate(originals)[:, keep],
        np.concatenate(found)[:, keep],
        np.concatenate(right).astype(np.bool_),
    )
    return [cells_finding(TITLE, exposure, cells, blind, f" at {layer.name!r}")]


def _reconstruct(
    release: Release, layer: FirstLayer, prior: _Prior, effort: Effort, source: torch.Generator
) -> Tensor:
    """Match gradients with the layer's input as what is free, shape (N, F)."""
    scene = release.scene
    inner = replace(release, scene=_fed(scene, layer, prior))
    # Columns are not known; what is drawn in their place is never looked at behind the layer.
    hidden = scene.draw(release.records, source)
    known = {**hidden, **{name: release.batch[name] for name in scene.targets}}
    rows = Field(_COLUMN, "float32", (layer.features,), 0.0, 1.0)

    def make() -> Candidate:
        drawn_NF = inputs_of(scene, layer, scene.draw(release.records, source))
        candidate = Candidate([rows], known, release.records, source, scene.device)
        candidate.start(0, prior.shares(drawn_NF[: release.records]))
        return candidate

    how = Search(
        effort.iterations,
        effort.restarts,
        rate=_RATE,
        signed=True,
        decay=0.1,
        smoothness=0.0,
        follow_all=True,
    )
    return prior.placed(pooled(search(inner, make, how))[0])


def _fed(scene: Scene, layer: FirstLayer, prior: _Prior) -> Scene:
    """Give the scene whose first layer is fed from a column of its own."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        rest = {name: values for name, values in batch.items() if name != _COLUMN}
        fed_NF = prior.placed(batch[_COLUMN])
        module = model.get_submodule(layer.name)
        hook = module.register_forward_pre_hook(lambda _m, _args: (fed_NF,))
        try:
            return scene.loss(model, rest)
        finally:
            hook.remove()

    return replace(scene, loss=loss)


def _guess(
    release: Release,
    layer: FirstLayer,
    prior: _Prior,
    true_NF: Tensor,
    source: torch.Generator,
) -> NDArray[np.bool_]:
    drawn_NF = inputs_of(release.scene, layer, release.scene.draw(release.records, source))
    right_NNF = prior.right(drawn_NF[: len(true_NF)], true_NF)
    pairs = matched_cells(right_NNF)
    return right_NNF[pairs, np.arange(len(pairs))]
