"""Look a model version over for weights that were made to leak, before a site trains from it.

The aggregator sends the weights, and a gradient of chosen weights can hold a record as it is: a
malicious version may come in any round. What is looked for here:

- an *imprint* layer: rows along one direction, each with a threshold of its own, so that
  neighbouring rows' gradients differ by the records between two thresholds (Robbing the Fed, Fowl
  et al. 2022, arXiv 2110.13057; LOKI, Zhao et al. 2023, arXiv 2303.12233);
- *duplicate* rows: the same by exact copies, scattered in a layer that is otherwise sound;
- *trap* weights: rows that are negative in exactly half of their places and lean to the negative
  side, so that a unit answers to hardly any record (Boenisch et al. 2021, arXiv 2112.02918);
- *scale*: weights so large that a gradient drowns all others, or NaN and infinity.

Layers that pass each of their inputs on unchanged (identity, delta kernels) are sound by
themselves; where one stands in the model, fewer rows make an imprint.

The thresholds are such that fresh and trained models pass: rows of zeros, constant rows and layers
that started from zeros have parallel rows too, but one threshold for all of them, which parts no
record from another. An output layer, whose units no later layer takes in, has parallel rows for all
classes that nobody has records of; it parts records only where its rows are long.

Whoever knows this file can stay below it: the lint is a fence, not the privacy guarantee. Only
weights are looked at, so what is said of them is public.

Shapes: R = rows (units) of a layer, F = weights of a row, K = random directions.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason

Matrix = NDArray[np.float32]
Vector = NDArray[np.float32]

_MOST_WEIGHT = 1e6
"""Largest norm of a row; trained layers stay below 1e3."""
_MOST_OFFSET = 1e9
"""Largest value of a tensor without rows: an intercept may be an amount of money."""

_LEAST_WIDTH = 8
"""Rows of fewer weights are parallel by chance, or because there is one thing to look at."""
_WIDE = 64
_COS_NARROW, _COS_WIDE = 0.98, 0.9
"""How close to the common direction a row must be: by chance one row in 1e5 at F = 8."""
_CANDIDATE_COS = 0.8
_LEAST_ROWS = 16
_LEAST_ROWS_BEHIND = 8
"""With a layer in the model that passes records on."""
_LEAST_SHARE = 0.125
"""Of the layer's rows: fewer do not show among random directions; exact copies do."""
_LADDER_OVER_SPREAD = 10.0
_LADDER_FLOOR = 1e-4
_ALIKE = 0.2
"""Relative deviation of the rows' lengths; what grew from zeros has lengths of all sizes."""

_OUTPUT_LENGTH = 10.0
"""Least usual length of an output layer's rows that make an imprint: a softmax is soft below."""
_OUTPUT_SPREAD = 1e-6

_COPY = 1e-4
"""Largest difference of two unit rows' coordinates that counts as none."""
_THRESHOLD_STEP = 1e-4
_LEAST_COPIES = 8

_TRAP_WIDTH = 32
_TRAP_LEAN = 3.0
"""Standard errors that the mean of the rows' sums lies below zero."""
_TRAP_COMMON = 4.0
"""Square of the mean unit row, times the rows: 1 where they are drawn apart."""
_TRAP_CHANCE = 1e-12

_ONE_HOT = 0.999
_ONE_HOT_SHARE = 0.9
_ONE_HOT_SAMPLE = 8

_DIRECTIONS = 16


class Detector(StrEnum):
    """What was found; the words of ``[lint] allow`` in policy.toml."""

    IMPRINT = "imprint"
    DUPLICATES = "duplicates"
    TRAP = "trap"
    SCALE = "scale"


@dataclass(frozen=True)
class Finding:
    """One thing that no honest model has.

    Attributes:
        detector: Which rule.
        tensor: The name in the vector spec.
        message: What was seen, in numbers of public weights.
    """

    detector: Detector
    tensor: str
    message: str


@dataclass(frozen=True, eq=False)
class _Layer:
    """A tensor as rows of weights, one a unit.

    Attributes:
        weights_RF: A view.
        bias_R: The units' offsets; None where the model has none for them.
        norms_R: Euclidean norms of the rows.
        feeds: Whether another layer takes its units in: see `_feeding`.
    """

    name: str
    weights_RF: Matrix = field(repr=False)
    bias_R: Vector | None = field(repr=False)
    norms_R: Vector = field(repr=False)
    feeds: bool


def check_model(
    tensors: Mapping[str, NDArray[np.float32]], seed: int, allowed: Iterable[Detector] = ()
) -> None:
    """Refuse a model version that looks made to leak.

    Args:
        tensors: As `lint_model` takes them.
        seed: Of the random directions; secret, so that nobody can hide from them.
        allowed: What the site's administrator lets pass.

    Raises:
        PeerError: SUSPECT_MODEL: names the tensor and what is wrong with it; no data of the site.
    """
    passed = set(allowed)
    found = [each for each in lint_model(tensors, seed) if each.detector not in passed]
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise PeerError(
            Reason.SUSPECT_MODEL,
            f"the model version looks made to leak: tensor {first.tensor!r}: {first.message}"
            f" [{first.detector}]{more}",
        )


def lint_model(tensors: Mapping[str, NDArray[np.float32]], seed: int) -> list[Finding]:
    """Look a model version over.

    Two passes over the weights, and more only over layers that look odd.

    Args:
        tensors: float32 arrays by name, in the order of the vector. A tensor of two and more
            dimensions is a layer, its first dimension that of its units; its offsets are
            ``X.bias`` beside ``X.weight``, or else a vector of the same module, wherever it stands.
        seed: Of the random directions.

    Returns:
        What was found, in the order of the tensors.
    """
    layers = _layers(tensors)
    found = list(_scale(tensors, layers))
    broken = {each.tensor for each in found}
    sound = [layer for layer in layers if layer.name not in broken]
    least = _LEAST_ROWS_BEHIND if any(map(_passes_on, sound)) else _LEAST_ROWS
    source = np.random.Generator(np.random.PCG64(seed))
    for layer in sound:
        finding = _imprint(layer, least, source) or _trap(layer)
        if finding is not None:
            found.append(finding)
    order = {name: place for place, name in enumerate(tensors)}
    return sorted(found, key=lambda each: order[each.tensor])


def _layers(tensors: Mapping[str, NDArray[np.float32]]) -> list[_Layer]:
    """Show each tensor with rows as a matrix, with its offsets."""
    following = dict(pairwise(tensors))
    offsets: dict[str, dict[str, Vector]] = {}  # by module and full name
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            offsets.setdefault(name.rpartition(".")[0], {})[name] = tensor
    shown: list[tuple[str, Matrix, Vector | None]] = []
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            bias = _bias_of(name, tensor.shape, following.get(name), offsets)
            shown.append((name, *_with_bias(tensor, bias)))
    feeding = _feeding([weights_RF.shape for _, weights_RF, _ in shown])
    layers: list[_Layer] = []
    for (name, weights_RF, bias), feeds in zip(shown, feeding, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            norms_R = np.sqrt(np.einsum("rf,rf->r", weights_RF, weights_RF))
        layers.append(_Layer(name, weights_RF, bias, norms_R, feeds))
    return layers


def _feeding(shapes: list[tuple[int, int]]) -> list[bool]:
    """Say of each layer, by (rows, width), whether another one takes its units in.

    The other one stands behind it; or before it, where nothing stands behind that takes in its own
    units: a model may name its head first.
    """
    widths: set[int] = set()  # of the layers behind, as they are gone through from the end
    fed, last = [], []
    for rows, width in reversed(shapes):
        fed.append(any(behind % rows == 0 for behind in widths))
        last.append(rows not in widths)
        widths.add(width)
    heads: set[int] = set()  # widths of the layers before that nothing behind takes in
    feeding = []
    for (rows, width), behind, is_last in zip(shapes, fed[::-1], last[::-1], strict=True):
        feeding.append(behind or rows in heads)
        if is_last:
            heads.add(width)
    return feeding


def _with_bias(tensor: NDArray[np.float32], bias: Vector | None) -> tuple[Matrix, Vector | None]:
    """Show a tensor by its units: the last dimension, where only that has the offsets' length."""
    if bias is not None and len(bias) == tensor.shape[-1] != len(tensor):
        return tensor.reshape(-1, tensor.shape[-1]).T, bias
    weights_RF = tensor.reshape(len(tensor), -1)
    return weights_RF, bias if bias is not None and len(bias) == len(weights_RF) else None


def _bias_of(
    name: str,
    shape: tuple[int, ...],
    following: str | None,
    offsets: Mapping[str, Mapping[str, Vector]],
) -> Vector | None:
    """Find a layer's offsets: a norm's scale behind an adapter of parallel rows is no threshold."""
    head, dot, _ = name.rpartition(".")
    own = offsets.get(head, {})
    beside = own.get(f"{head}{dot}bias", own.get(following or ""))
    if beside is not None and len(beside) in (shape[0], shape[-1]):
        return beside
    return next((vector for vector in own.values() if len(vector) == shape[0]), None)


def _scale(tensors: Mapping[str, NDArray[np.float32]], layers: list[_Layer]) -> Iterator[Finding]:
    """Find NaN, infinity and weights beyond all proportion."""
    for layer in layers:
        most = float(layer.norms_R.max(initial=0.0))
        if not most <= _MOST_WEIGHT:  # false for NaN, and for what overflows when squared
            message = f"a row has norm {most:.3g}, and {_MOST_WEIGHT:g} is the most"
            yield Finding(Detector.SCALE, layer.name, message)
    for name, tensor in tensors.items():
        most = float(np.abs(tensor).max(initial=0.0)) if tensor.ndim < 2 else 0.0
        if not most <= _MOST_OFFSET:
            message = f"a value of {most:.3g} stands in it, and {_MOST_OFFSET:g} is the most"
            yield Finding(Detector.SCALE, name, message)


def _passes_on(layer: _Layer) -> bool:
    """Say whether nearly all rows copy one input each: an identity, or delta kernels."""
    live = np.flatnonzero(layer.norms_R > 0)
    if layer.weights_RF.shape[1] < _LEAST_WIDTH or len(live) < 3:
        return False
    sample = live[:: -(-len(live) // _ONE_HOT_SAMPLE)]
    # A sample first, as nearly all layers fail it.
    return all(np.mean(_is_one_hot(layer, rows)) >= _ONE_HOT_SHARE for rows in (sample, live))


def _is_one_hot(layer: _Layer, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    peaks = np.abs(layer.weights_RF[rows]).max(axis=1, initial=0.0)
    return np.asarray(peaks >= np.float32(_ONE_HOT) * layer.norms_R[rows], dtype=np.bool_)


def _imprint(layer: _Layer, least: int, source: np.random.Generator) -> Finding | None:
    """Find rows along one direction that have thresholds of their own."""
    width = layer.weights_RF.shape[1]
    live = np.flatnonzero(layer.norms_R > 0)
    if layer.bias_R is None or width < _LEAST_WIDTH or len(live) < min(least, _LEAST_COPIES):
        return None
    # Squares of these sketches are the rows' squares in the mean: parallel rows stay parallel.
    directions_FK = source.standard_normal((width, _DIRECTIONS), dtype=np.float32)
    sketch_RK = (layer.weights_RF @ directions_FK)[live]
    sketch_RK /= np.linalg.norm(sketch_RK, axis=1, keepdims=True) + np.float32(1e-30)
    finding = _ladder(layer, live, sketch_RK, least)
    return _copies(layer, live, sketch_RK) if finding is None and layer.feeds else finding


def _ladder(layer: _Layer, live: NDArray[np.intp], sketch_RK: Matrix, least: int) -> Finding | None:
    """Find the layer's main direction, and whether the rows along it have a ladder of offsets."""
    common_K = np.linalg.eigh(sketch_RK.T @ sketch_RK)[1][:, -1]
    shadow_R = sketch_RK @ common_K
    near = np.abs(shadow_R) >= _CANDIDATE_COS
    enough = max(least, math.ceil(_LEAST_SHARE * len(live)))
    if layer.bias_R is None or near.sum() < enough:
        return None
    rows = live[near]
    unit_RF = layer.weights_RF[rows] / layer.norms_R[rows, np.newaxis]
    direction_F = np.sign(shadow_R[near]) @ unit_RF
    direction_F /= np.linalg.norm(direction_F)
    cos_R = unit_RF @ direction_F
    closest = _COS_WIDE if unit_RF.shape[1] >= _WIDE else _COS_NARROW
    group = np.abs(cos_R) >= closest
    if group.sum() < enough:
        return None
    slopes_R = (layer.norms_R[rows] * cos_R)[group].astype(np.float64)
    bias_R = layer.bias_R[rows][group].astype(np.float64)
    # Rows that grew from zeros along the mean input have offsets in proportion to their length: one
    # threshold for all, but for what their directions differ. A ladder is what that leaves.
    squares = float(bias_R @ bias_R)
    rest = squares - float(bias_R @ slopes_R) ** 2 / float(slopes_R @ slopes_R)
    spread = float(np.mean(1 - cos_R[group].astype(np.float64) ** 2))
    if not layer.feeds and (
        spread > _OUTPUT_SPREAD or np.median(np.abs(slopes_R)) < _OUTPUT_LENGTH
    ):
        return None
    alike = float(slopes_R.std()) < _ALIKE * abs(float(slopes_R.mean()))
    stepped = float(bias_R.std()) > _LADDER_FLOOR * float(np.abs(bias_R).max())
    proud = rest > squares * (_LADDER_OVER_SPREAD * spread + _LADDER_FLOOR)
    if not (proud or (alike and stepped)):
        return None
    message = (
        f"{int(group.sum())} of {len(layer.norms_R)} rows lie along one direction (cosine"
        f" {closest} and more), each with a threshold of its own"
    )
    return Finding(Detector.IMPRINT, layer.name, message)


def _copies(layer: _Layer, live: NDArray[np.intp], sketch_RK: Matrix) -> Finding | None:
    """Find rows that are exact or scaled copies of others, with other thresholds."""
    if layer.bias_R is None:
        return None
    signs_R = np.where(sketch_RK[:, 0] < 0, -1.0, 1.0).astype(np.float32)
    turned_RK = sketch_RK * signs_R[:, np.newaxis]
    order = np.argsort(turned_RK[:, 0])
    same = np.abs(np.diff(turned_RK[order], axis=0)).max(axis=1) < _COPY
    thresholds_R = -layer.bias_R[live] / (layer.norms_R[live] * signs_R)
    ordered_R = thresholds_R[order]
    apart = np.abs(np.diff(ordered_R)) > _THRESHOLD_STEP * np.abs(ordered_R).max(initial=0.0)
    pairs = same & apart
    rows = live[order[np.r_[pairs, False] | np.r_[False, pairs]]]
    # Pruned rows of a single weight are parallel by chance.
    copies = int(np.count_nonzero(~_is_one_hot(layer, rows)))
    if copies < _LEAST_COPIES:
        return None
    message = (
        f"{copies} of {len(layer.norms_R)} rows are copies of others, up to their length, with"
        " other thresholds"
    )
    return Finding(Detector.DUPLICATES, layer.name, message)


def _trap(layer: _Layer) -> Finding | None:
    """Find rows that lean to the negative side and are balanced as no random rows are."""
    rows, width = layer.weights_RF.shape
    if width < _TRAP_WIDTH or rows < _LEAST_ROWS:
        return None
    live = layer.norms_R > 0
    count = int(live.sum())
    if count < _LEAST_ROWS:
        return None
    sums_R = layer.weights_RF.sum(axis=1)[live].astype(np.float64)
    leans_R = sums_R / layer.norms_R[live]  # standard normal where rows are random
    mean, deviation = float(leans_R.mean()), float(leans_R.std())
    # A deviation of 0 is no proof: rows of a Hadamard matrix are balanced, and lean nowhere.
    lean = -mean * math.sqrt(count) / max(deviation, 1e-3)
    if not lean > _TRAP_LEAN:
        return None
    # Rows that learnt a common direction are alike in this as in all else; traps are drawn apart.
    unit_F = (layer.weights_RF[live] / layer.norms_R[live, np.newaxis]).mean(axis=0)
    common = float(unit_F @ unit_F) - mean**2 / width
    if common > _TRAP_COMMON / count:
        return None
    negatives_R = np.count_nonzero(layer.weights_RF < 0, axis=1)[live]
    halves = int(np.count_nonzero(np.abs(2 * negatives_R - width) <= width % 2))
    if not _tail(count, halves, width) < _TRAP_CHANCE:
        return None
    message = (
        f"{halves} of {count} rows are negative in exactly half of their places, and they lean to"
        " the negative side"
    )
    return Finding(Detector.TRAP, layer.name, message)


def _tail(count: int, halves: int, width: int) -> float:
    """Bound the chance that so many random rows are balanced, by Hoeffding's inequality.

    A row of random signs is balanced with probability p <= sqrt(2/(pi*F)), twice that for odd F.
    """
    chance = math.sqrt(2 / (math.pi * width)) * (1 + width % 2)
    share = halves / count
    if share <= chance or chance >= 1:
        return 1.0
    if share == 1:
        return chance**count
    divergence = share * math.log(share / chance)
    divergence += (1 - share) * math.log((1 - share) / (1 - chance))
    return math.exp(-count * divergence)
