"""A4: find the tokens whose inputs lie in the span of a layer's gradient (DAGER).

The gradient of a layer that sees single tokens, with nothing of their context, is a sum of outer
products of these inputs: its column space holds no other. Each (position, token) of the vocabulary
gives one input, so all can be tried (Petrov et al., arXiv 2405.15586). Where embeddings themselves
are trained, their gradient has a row for each token that was there, and no other.

A gradient of low rank keeps its span under rounding, sparsification, adapters and secure sums.
Noise fills it: singular values below those of the noise are no part of it.

Shapes: N = sequences behind a release, L = tokens of a sequence, V = vocabulary, F = features of
the layer, O = outputs, r = rank.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privacy.errors import UsageError
from privacy.leakage.fields import Batch, Field, FieldKind
from privacy.leakage.release import Release
from privacy.leakage.scene import Scene
from privacy.leakage.verdict import (
    MAX_SHOWN,
    Evidence,
    EvidenceKind,
    Finding,
    Metric,
    judge_tokens,
    not_applicable,
)

ATTACK = "A4"
SPAN = "Span check of the first layer that sees single tokens"
ROWS = "Rows of the embedding's gradient"
_CHUNK = 256  # tokens tried at once
_ROUNDING = 1e-6  # of the largest singular value: what float32 gradients are off by
_SAME = 1e-5


@dataclass(frozen=True)
class _Hits:
    """Which tokens of a release were found: (N, L) each, and how many chance would find."""

    originals_NL: NDArray[np.int64]
    found_NL: NDArray[np.int64]
    right_NL: NDArray[np.bool_]
    chance: float


def attack_tokens(releases: Sequence[Release]) -> list[Finding]:
    """Look for the tokens of each token column, by span and by embedding rows.

    Args:
        releases: Independent victims of one exposure.
    """
    scene, exposure = releases[0].scene, releases[0].exposure
    columns = [field for field in scene.fields if field.kind is FieldKind.TOKENS]
    if not columns:
        reason = "no column holds tokens"
        return [not_applicable(ATTACK, SPAN, exposure, Metric.TOKENS, reason)]
    return [attack(field, releases) for field in columns for attack in (_by_span, _by_rows)]


def _by_span(field: Field, releases: Sequence[Release]) -> Finding:
    scene = releases[0].scene
    layers = _span_layers(scene, field)
    if not layers:
        reason = f"no trained layer sees single tokens of {field.name!r}: their context is mixed in"
        return not_applicable(ATTACK, SPAN, releases[0].exposure, Metric.TOKENS, reason)
    spans = [_span(release, layers, field) for release in releases]
    apart = [
        _distances(scene, field, layers[0], release, span)
        for release, span in zip(releases, spans, strict=True)
    ]
    hits = [_nearest(field, release, far) for release, far in zip(releases, apart, strict=True)]
    rank = max(span.shape[1] for span in spans)
    how = f"{', '.join(layers)}, rank {rank} of {spans[0].shape[0]}"
    return _finding(SPAN, field, releases, hits, how)


def _by_rows(field: Field, releases: Sequence[Release]) -> Finding:
    scene = releases[0].scene
    names = _embeddings(scene, field)
    if not names:
        reason = f"no trained embedding looks {field.name!r} up"
        return not_applicable(ATTACK, ROWS, releases[0].exposure, Metric.TOKENS, reason)
    hits = [_loudest_rows(field, release, names[0]) for release in releases]
    return _finding(ROWS, field, releases, hits, names[0])


def _finding(
    title: str, field: Field, releases: Sequence[Release], hits: Sequence[_Hits], how: str
) -> Finding:
    right = np.concatenate([hit.right_NL for hit in hits])
    score, baseline = float(right.mean()), float(np.mean([hit.chance for hit in hits]))
    order = right.mean(axis=1).argsort()[::-1][:MAX_SHOWN]
    return Finding(
        attack=ATTACK,
        title=title,
        exposure=releases[0].exposure,
        metric=Metric.TOKENS,
        score=score,
        baseline=baseline,
        verdict=judge_tokens(score, baseline, right.size),
        reason=f"{right.sum()} of {right.size} tokens of {field.name!r} ({how})",
        details={"tokens": float(right.size), "records": float(len(right))},
        evidence=Evidence(
            EvidenceKind.TOKENS,
            (field.name,),
            np.concatenate([hit.originals_NL for hit in hits])[order],
            np.concatenate([hit.found_NL for hit in hits])[order],
            right[order],
        ),
    )


def _span(release: Release, layers: Sequence[str], field: Field) -> Tensor:
    """Give an orthonormal basis of what the gradients of the layers span, float64, (F, r)."""
    placed = release.scene.placed(release.observed_D)
    parts = [_inputs_first(release.scene, name, placed[f"{name}.weight"]) for name in layers]
    gradient_FO = torch.cat(parts, dim=1)
    basis_FR, sizes_R, _ = torch.linalg.svd(gradient_FO, full_matrices=False)
    height, width = gradient_FO.shape
    quiet = release.error_std * (math.sqrt(height) + math.sqrt(width))
    rank = int((sizes_R > quiet + _ROUNDING * sizes_R[0]).sum())
    kept: Tensor = basis_FR[:, : max(1, min(rank, release.records * field.size))]
    return kept


def _inputs_first(scene: Scene, name: str, weight: Tensor) -> Tensor:
    """Bring a layer's weight into the order (inputs, outputs)."""
    module = scene.model.get_submodule(name)
    return weight.T if isinstance(module, nn.Linear) else weight


def _distances(
    scene: Scene, field: Field, layer: str, release: Release, basis_FR: Tensor
) -> Tensor:
    """Give how far each token's input at each place is from the span, shape (V, L)."""
    far = []
    first = {name: values[:1] for name, values in release.batch.items()}
    for begin in range(0, field.categories, _CHUNK):
        values = torch.arange(begin, min(begin + _CHUNK, field.categories), device=scene.device)
        batch = {
            name: column.expand(len(values), *column.shape[1:]) for name, column in first.items()
        }
        tokens = values.reshape(-1, *(1,) * len(field.shape)) + int(field.bounds[0])
        batch[field.name] = tokens.expand(-1, *field.shape).to(first[field.name].dtype)
        inputs_CLF = _inputs(scene, layer, batch).double()
        inputs_CLF = inputs_CLF / inputs_CLF.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        far.append(1 - (inputs_CLF @ basis_FR.to(inputs_CLF)).square().sum(dim=-1))
    return torch.cat(far).reshape(field.categories, -1)


def _nearest(field: Field, release: Release, far_VL: Tensor) -> _Hits:
    """Take as many tokens a place as there are sequences: the nearest to the span."""
    true_NL = _tokens(field, release.batch)
    count = min(len(true_NL), field.categories)
    order_NL = far_VL.argsort(dim=0)[:count].cpu().numpy()
    right_NL = (true_NL[:, None, :] == order_NL[None]).any(axis=1)
    spare_NL = order_NL[np.arange(len(true_NL)) % count]
    found_NL = np.where(right_NL, true_NL, spare_NL)
    return _Hits(true_NL, found_NL, right_NL, count / field.categories)


def _loudest_rows(field: Field, release: Release, name: str) -> _Hits:
    """Take as many tokens as may be there: those with the longest rows above the noise."""
    true_NL = _tokens(field, release.batch)
    rows_VF = release.scene.placed(release.observed_D)[f"{name}.weight"][: field.categories]
    norms_V = rows_VF.norm(dim=1)
    quiet = 1.1 * release.error_std * math.sqrt(rows_VF.shape[1]) + _SAME * norms_V.max()
    loud = int((norms_V > quiet).sum())
    count = min(true_NL.size, field.categories, max(1, loud))
    picked = norms_V.argsort(descending=True)[:count].cpu().numpy()
    right_NL = np.isin(true_NL, picked)
    found_NL = np.where(
        right_NL, true_NL, picked[np.arange(true_NL.size) % count].reshape(true_NL.shape)
    )
    return _Hits(true_NL, found_NL, right_NL, count / field.categories)


def _tokens(field: Field, batch: Batch) -> NDArray[np.int64]:
    values: NDArray[np.int64] = batch[field.name].flatten(1).cpu().numpy() - int(field.bounds[0])
    return values


class _SeenError(Exception):
    """Ends a forward pass once the wanted layer has its input."""


def _inputs(scene: Scene, layer: str, batch: Batch) -> Tensor:
    """Give what a layer sees of a batch, without running what is behind it."""
    seen: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0].detach())
        raise _SeenError

    hook = scene.model.get_submodule(layer).register_forward_pre_hook(note)
    try:
        scene.run(batch)
    except _SeenError:
        return seen[0]
    finally:
        hook.remove()
    raise UsageError(f"the loss of the job meets {layer!r} with some batches only")


@contextmanager
def _all_inputs(scene: Scene, seen: dict[str, list[Tensor]]) -> Iterator[None]:
    """Note the first input of every module with a weight of its own, in order."""
    hooks = []
    for name, module in scene.model.named_modules():
        if isinstance(getattr(module, "weight", None), Tensor):

            def note(_: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
                if args and isinstance(args[0], Tensor):
                    seen.setdefault(name, []).append(args[0].detach())

            hooks.append(module.register_forward_pre_hook(note))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _seen_of(scene: Scene, batch: Batch) -> dict[str, list[Tensor]]:
    seen: dict[str, list[Tensor]] = {}
    with _all_inputs(scene, seen):
        scene.run(batch)
    return seen


def _span_layers(scene: Scene, field: Field) -> list[str]:
    """Name the first trained matrices whose inputs know their own token and no other."""
    source = torch.Generator().manual_seed(0)
    batch, other = (scene.draw(2, source) for _ in range(2))
    tokens = batch[field.name].clone()
    tokens[..., 1::2] = other[field.name][..., 1::2]
    first, second = _seen_of(scene, batch), _seen_of(scene, {**batch, field.name: tokens})
    trained = {tensor.name for tensor in scene.spec.tensors if len(tensor.shape) == 2}
    chosen: list[str] = []
    for name, inputs in first.items():
        values = inputs[0]
        fits = f"{name}.weight" in trained and values.is_floating_point() and values.ndim == 3
        if not fits or values.shape[1] != field.size or name not in second:
            continue
        changed = second[name][0]
        alone = torch.allclose(values[:, ::2], changed[:, ::2], rtol=_SAME, atol=_SAME)
        if not alone or torch.equal(values, changed):
            continue
        if not chosen or torch.equal(values, first[chosen[0]][0]):
            chosen.append(name)
    return chosen


def _embeddings(scene: Scene, field: Field) -> list[str]:
    """Name the trained embeddings that look tokens of a column up."""
    batch = scene.draw(2, torch.Generator().manual_seed(0))
    trained = {tensor.name for tensor in scene.spec.tensors}
    low = int(field.bounds[0])
    return [
        name
        for name, inputs in _seen_of(scene, batch).items()
        if isinstance(scene.model.get_submodule(name), nn.Embedding)
        and f"{name}.weight" in trained
        and inputs[0].numel() == batch[field.name].numel()
        and torch.equal(inputs[0].reshape(-1), batch[field.name].reshape(-1) - low)
    ]
