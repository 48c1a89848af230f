"""A2: read records off a first fully connected layer, as it is and as a hostile version would be.

A row of the weight's gradient is the bias's gradient times an input, or a mixture of inputs: where
one record alone moves a neuron, their quotient is the record (Phong et al. 2018; Geiping et al.
2020). A hostile aggregator makes that happen: rows that all measure one functional of the input,
biases at its quantiles, so that neighbouring rows differ by the records between two quantiles, and
the difference of their gradients is those records (Robbing the Fed, arXiv 2110.13057). Sums of
many sites do not hinder it. The architecture stays: such weights can come with any round.

Inputs are compared where the layer sees them, after whatever the app makes of its columns.

Shapes: N = inputs, F = features of the layer, G = candidates, H = neurons.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privacy.errors import UsageError
from privacy.leakage.fields import Batch, FieldKind
from privacy.leakage.release import Release
from privacy.leakage.scene import Scene
from privacy.leakage.scores import best_pairs
from privacy.leakage.verdict import (
    MAX_SHOWN,
    Evidence,
    EvidenceKind,
    Exposure,
    Finding,
    Metric,
    Verdict,
    not_applicable,
)

ATTACK = "A2"
PASSIVE = "First layer: weight gradients over bias gradients"
IMPRINT = "First layer with imprinted weights, as a hostile version may bring"
EXACT = 0.1
"""An input is recovered when the error is at most this share of its distance from the mean."""

_CLOSE = 0.5
_PRIOR = 512
_QUIET = 1e-4  # of the largest bias gradient: smaller ones are rounding


@dataclass(frozen=True)
class FirstLayer:
    """A fully connected layer that sees records before any other parameter does.

    Attributes:
        name: Its name in the model.
        next_name: The layer behind it where that is fully connected, too, else None.
        features: F.
        neurons: H.
    """

    name: str
    next_name: str | None
    features: int
    neurons: int


def find_first_layer(scene: Scene) -> FirstLayer | str:
    """Find the layer, or say why there is none to attack."""
    order = _order(scene)
    if not order:
        return "the loss runs no module of the model"
    trained = {tensor.name for tensor in scene.spec.tensors}
    name, module = order[0]
    if not isinstance(module, nn.Linear):
        return f"the first layer is not fully connected but {type(module).__name__}"
    if not {f"{name}.weight", f"{name}.bias"} <= trained:
        return "the first layer has no bias, or is not trained"
    next_name = None
    if len(order) > 1 and isinstance(order[1][1], nn.Linear):
        fits = order[1][1].in_features == module.out_features
        next_name = order[1][0] if fits else None
    return FirstLayer(name, next_name, module.in_features, module.out_features)


def inputs_of(scene: Scene, layer: FirstLayer, batch: Batch) -> Tensor:
    """Give what the layer sees of a batch, float32, shape (N, F)."""
    seen: list[Tensor] = []
    module = scene.model.get_submodule(layer.name)
    hook = module.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
    try:
        scene.run(batch)
    finally:
        hook.remove()
    return torch.cat([values.reshape(-1, layer.features) for values in seen]).float()


def attack_first_layer(
    releases: Sequence[Release], layer: FirstLayer, title: str, source: torch.Generator
) -> Finding:
    """Take quotients of gradients, of rows and of neighbouring rows, and look for inputs in them.

    Args:
        releases: Independent victims of one exposure, all at the same weights.
        layer: As found.
        title: How the weights came about.
        source: Where made-up records come from, for the guess without data.
    """
    scene = releases[0].scene
    prior_NF = inputs_of(scene, layer, scene.draw(_PRIOR, source))
    mean_F = prior_NF.mean(dim=0)
    errors, blind, originals, found = [], [], [], []
    for release in releases:
        true_NF = inputs_of(scene, layer, release.batch)
        guess_NF, error_N = _closest(_candidates(release, layer), true_NF, mean_F)
        _, blind_N = _closest(
            inputs_of(scene, layer, scene.draw(len(true_NF), source)), true_NF, mean_F
        )
        errors.append(error_N)
        blind.append(blind_N)
        originals.append(true_NF)
        found.append(guess_NF)
    error_N, blind_N = torch.cat(errors), torch.cat(blind)
    exact, by_chance = int((error_N <= EXACT).sum()), int((blind_N <= EXACT).sum())
    order = error_N.argsort()[:MAX_SHOWN]
    return Finding(
        attack=ATTACK,
        title=title,
        exposure=releases[0].exposure,
        metric=Metric.ROWS,
        score=exact / len(error_N),
        baseline=by_chance / len(error_N),
        verdict=_verdict(error_N, blind_N),
        reason=f"{exact} of {len(error_N)} inputs of {layer.name!r} read off ({by_chance} by"
        f" chance); the closest to {float(error_N.min()):.2g} of its spread",
        details={"exact rows": float(exact), "records": float(len(error_N))},
        evidence=_evidence(scene, layer, torch.cat(originals)[order], torch.cat(found)[order]),
    )


def first_layer_not_applicable(exposure: Exposure, title: str, reason: str) -> Finding:
    """Say that there is no such layer."""
    return not_applicable(ATTACK, title, exposure, Metric.ROWS, reason)


def imprinted(scene: Scene, layer: FirstLayer, source: torch.Generator) -> list[Tensor]:
    """Give the version's weights with the first layer turned into a ladder of quantiles.

    The layer behind gets equal columns, so that all rows pass on the same gradient and the
    difference of two is that of the records between their quantiles alone.
    """
    if layer.next_name is None:
        raise UsageError("an imprint needs a fully connected layer behind the first")
    prior_NF = inputs_of(scene, layer, scene.draw(_PRIOR, source))
    spread_F = prior_NF.std(dim=0)
    direction_F = spread_F / spread_F.norm().clamp_min(1e-12)
    measured_N = prior_NF @ direction_F
    shares = (torch.arange(layer.neurons, device=scene.device) + 0.5) / layer.neurons
    ladder_H = measured_N.quantile(shares)
    # Small weights and a large layer behind: what the site trains is a difference of float32.
    gain = 1 / (layer.neurons * measured_N.std().clamp_min(1e-12))
    fresh = {
        f"{layer.name}.weight": (gain * direction_F).repeat(layer.neurons, 1),
        f"{layer.name}.bias": -gain * ladder_H,
    }
    pairs = zip(scene.spec.tensors, scene.parameters, strict=True)
    named = {tensor.name: weights for tensor, weights in pairs}
    behind = f"{layer.next_name}.weight"
    if behind in named:
        named[behind] = named[behind][:, :1].sign().expand_as(named[behind])
    named.update(fresh)
    return [named[tensor.name].clone() for tensor in scene.spec.tensors]


def _verdict(error_N: Tensor, blind_N: Tensor) -> Verdict:
    if int((error_N <= EXACT).sum()) > int((blind_N <= EXACT).sum()):
        return Verdict.FAIL
    close, by_chance = int((error_N <= _CLOSE).sum()), int((blind_N <= _CLOSE).sum())
    return Verdict.WARN if close > by_chance else Verdict.PASS


def _order(scene: Scene) -> list[tuple[str, nn.Module]]:
    """List the modules with parameters of their own, as a batch meets them."""
    met: list[tuple[str, nn.Module]] = []
    hooks = []
    for name, module in scene.model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            hooks.append(module.register_forward_pre_hook(_noting(met, name)))
    try:
        scene.run(scene.draw(2, torch.Generator().manual_seed(0)))
    finally:
        for hook in hooks:
            hook.remove()
    return met


def _noting(met: list[tuple[str, nn.Module]], name: str) -> Callable[..., None]:
    def note(module: nn.Module, _: object) -> None:
        met.append((name, module))

    return note


def _candidates(release: Release, layer: FirstLayer) -> Tensor:
    """Give quotients of rows, and of differences of rows that are neighbours by bias, (G, F)."""
    placed = release.scene.placed(release.observed_D)
    weight_HF, bias_H = placed[f"{layer.name}.weight"], placed[f"{layer.name}.bias"]
    parameters = dict(release.scene.model.named_parameters())
    order = parameters[f"{layer.name}.bias"].detach().argsort()
    steps_HF, steps_H = weight_HF[order].diff(dim=0), bias_H[order].diff(dim=0)
    tops, bottoms = torch.cat([weight_HF, steps_HF]), torch.cat([bias_H, steps_H])
    loud = bottoms.abs() > bottoms.abs().max() * _QUIET
    return (tops[loud] / bottoms[loud, None]).float()


def _closest(candidates_GF: Tensor, true_NF: Tensor, mean_F: Tensor) -> tuple[Tensor, Tensor]:
    """Assign candidates to inputs; gives them and their errors, as shares of each one's spread."""
    spread_N = (true_NF - mean_F).norm(dim=1).clamp_min(1e-9)
    if len(candidates_GF) < len(true_NF):
        missing = mean_F.expand(len(true_NF) - len(candidates_GF), -1)
        candidates_GF = torch.cat([candidates_GF, missing])
    error_GN = torch.cdist(candidates_GF.double(), true_NF.double()).float() / spread_N
    pairs = best_pairs(-error_GN.clamp(max=1.0))
    return candidates_GF[pairs], error_GN[pairs, torch.arange(len(true_NF))]


def _evidence(scene: Scene, layer: FirstLayer, originals: Tensor, found: Tensor) -> Evidence:
    """Show inputs as pictures where they are as large as one, else as numbers."""
    pictures = [f for f in scene.fields if f.kind is FieldKind.IMAGE and f.size == layer.features]
    if not pictures or len(originals) == 0:
        names = tuple(f"{layer.name}[{i}]" for i in range(layer.features))
        return Evidence(EvidenceKind.ROWS, names, originals.cpu().numpy(), found.cpu().numpy())
    shape = pictures[0].shape
    low, high = originals.min(), originals.max()

    def shown(values: Tensor) -> Tensor:
        unit = ((values - low) / (high - low).clamp_min(1e-9)).clamp(0, 1)
        planes = unit.reshape(-1, *shape)
        return planes.permute(0, 3, 1, 2) if pictures[0].channels_last else planes

    left, right = (shown(values).contiguous().cpu().numpy() for values in (originals, found))
    return Evidence(EvidenceKind.IMAGES, (pictures[0].name,), left, right)
