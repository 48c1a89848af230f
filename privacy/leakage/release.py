"""Let made-up sites send through the real pipeline, and give what an attacker makes of it.

What is attacked is the vector that `privacy.decode` gives of one site's integers (a broken secure
aggregation), or of the sum of several sites' (what the aggregator opens): clipped, mapped, rounded
and noised by the very code that a site runs.

Shapes: D = coordinates of the model vector, d = integers, S = sites, B = records of a site, M =
metrics.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.compress import MapKind
from privacy.decode import decode_sum
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.leakage.fields import Batch
from privacy.leakage.scene import Scene
from privacy.leakage.unrolled import SiteUpdate, descent_of, flatten, recipe_of, record_gradients
from privacy.leakage.verdict import Exposure
from privacy.local_steps import LocalStepAccumulator
from privacy.low_rank_map import SharedMap
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator
from privacy.secagg.encoding import hash_of

Projection = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Release:
    """What an attacker sees, and for the judge, of whom.

    Attributes:
        scene: What the attacker knows.
        exposure: One site's update, or a sum.
        sites: S, how many sites' updates are in it.
        batch: The records behind it, site by site, S*B in all: the truth to compare with.
        observed_D: The decoded vector, float64, parameter units, shape (D,).
        error_std: Deviation of noise and rounding on each coordinate.
        project: What the shared map and its decoding make of a vector: linear, its own adjoint.
    """

    scene: Scene
    exposure: Exposure
    sites: int
    batch: Batch = field(repr=False)
    observed_D: Tensor = field(repr=False)
    error_std: float
    project: Projection = field(repr=False)

    @property
    def records(self) -> int:
        """Return S*B: how many records are behind it."""
        return self.sites * self.scene.records


def release_of(scene: Scene, exposure: Exposure, batch: Batch, seed: int) -> Release:
    """Encode made-up sites' records as sites do, and decode what leaves.

    Args:
        scene: The job.
        exposure: Whether one site's update is seen, or the sum of ``scene.sites``.
        batch: S*B records on the model's device.
        seed: Of roundings and noise.
    """
    sites = 1 if exposure is Exposure.ALONE else scene.sites
    total_d = np.zeros(scene.plan.length, dtype=np.int64)
    for site in range(sites):
        rows = slice(site * scene.records, (site + 1) * scene.records)
        own = {name: values[rows] for name, values in batch.items()}
        total_d += _integers(scene, own, _Seeds(seed, site))
    ring_d = (total_d % (1 << scene.plan.bits)).astype(np.uint32)
    decoded = decode_sum(scene.plan, ring_d, 1.0)
    observed_D = torch.from_numpy(decoded.gradient_D).to(scene.device)
    std = error_std(scene, sites)
    return Release(scene, exposure, sites, batch, observed_D, std, projection_of(scene.plan))


def error_std(scene: Scene, sites: int) -> float:
    """Give the deviation of noise and rounding on each decoded coordinate of a sum."""
    plan, recipe = scene.plan, recipe_of(scene)
    variance = sites * (plan.noise_variance + 1 / 12) / plan.scale**2
    if plan.local is not None:
        step = plan.noise_multiplier * plan.local.clip / plan.local.expected_batch
        variance += sites * recipe.steps * (recipe.factor * recipe.rate * step) ** 2
    return math.sqrt(variance)


def projection_of(plan: EncodingPlan) -> Projection:
    """Give what a plan's map and its decoding make of a vector: itself, or what they leave of it.

    It is symmetric, and with padding no projection: applied once, as `privacy.decode` has done.
    """
    if not plan.map_kind.loses:
        return lambda vector_D: vector_D
    linear_map, length = plan.linear_map, plan.gradient_length
    if plan.map_kind is MapKind.RANDOM_K:
        kept = torch.from_numpy(_projected(linear_map, length, np.ones(length)))
        return lambda vector_D: vector_D * kept.to(vector_D)

    def project(vector_D: Tensor) -> Tensor:
        projected_D: Tensor = _Projected.apply(vector_D, linear_map, length)  # type: ignore[no-untyped-call]
        return projected_D

    return project


class _Projected(torch.autograd.Function):
    """A map followed by its decoding is symmetric, so its backward pass is itself."""

    @staticmethod
    def forward(ctx: "_Context", vector_D: Tensor, linear_map: SharedMap, length: int) -> Tensor:
        ctx.linear_map, ctx.length = linear_map, length
        mapped_D = _projected(linear_map, length, vector_D.detach().cpu().double().numpy())
        return torch.from_numpy(mapped_D).to(vector_D)

    @staticmethod
    def backward(ctx: "_Context", *grads: Tensor) -> tuple[Tensor, None, None]:
        mapped_D = _projected(ctx.linear_map, ctx.length, grads[0].cpu().double().numpy())
        return torch.from_numpy(mapped_D).to(grads[0]), None, None


class _Context:
    """What the forward pass leaves for the backward pass."""

    linear_map: SharedMap
    length: int


def _projected(
    linear_map: SharedMap, length: int, vector_D: NDArray[np.float64]
) -> NDArray[np.float64]:
    padded = np.zeros(linear_map.length)
    padded[:length] = vector_D
    return linear_map.decode(linear_map.apply(padded))[:length]


@dataclass(frozen=True)
class _Seeds:
    """Where a made-up site's secret seeds come from: public, so that an audit can be repeated."""

    seed: int
    site: int

    def of(self, use: str, number: int = 0) -> bytes:
        return hash_of("leakage-audit", self.seed, self.site, use, number)


def _integers(scene: Scene, batch: Batch, seeds: _Seeds) -> NDArray[np.int64]:
    """Make one site's integers, noise included."""
    plan = scene.plan
    metrics_M = np.zeros(plan.metrics_length, dtype=np.float32) if plan.metrics_length else None
    coins = seeds.of("rounding") if plan.announces_scale else None
    if plan.mode is Mode.RECORD_DISTRIBUTED:
        return _record_sum(scene, batch, seeds)
    if plan.mode is Mode.RECORD_LOCAL:
        delta = _delta(scene, _noised_steps(scene, batch, seeds))
        return encode_delta(plan, delta, metrics_M, coins).vector_D.astype(np.int64, copy=False)
    # Plain local steps are those that the attack unrolls, but for the clip, which the encoding has.
    moved_D = SiteUpdate(scene, clip_update=False)(batch).detach()
    if plan.mode is Mode.NONE:
        return encode_delta(plan, _delta(scene, moved_D), metrics_M, coins).vector_D.astype(
            np.int64, copy=False
        )
    rounding, noise = seeds.of("rounding"), seeds.of("noise")
    return encode_delta(plan, _delta(scene, moved_D), metrics_M, rounding, noise).vector_D.astype(
        np.int64, copy=False
    )


def _record_sum(scene: Scene, batch: Batch, seeds: _Seeds) -> NDArray[np.int64]:
    gradients_BD = record_gradients(scene, scene.parameters, batch)
    accumulator = RecordAccumulator(scene.plan)
    accumulator.add(-_float32(gradients_BD), *_beside(scene, len(gradients_BD)))
    return accumulator.finish(seeds.of("noise")).vector_D.astype(np.int64, copy=False)


def _noised_steps(scene: Scene, batch: Batch, seeds: _Seeds) -> Tensor:
    """Take noised local steps, as `edge_node.rounds.local_dp` does; gives the difference, (D,)."""
    recipe = recipe_of(scene)
    accumulator = LocalStepAccumulator(scene.plan)
    parameters = [parameter.detach() for parameter in scene.parameters]
    descent = descent_of(recipe, parameters)
    for step in range(recipe.steps):
        gradients_BD = record_gradients(scene, parameters, batch)
        accumulator.add(_float32(gradients_BD), *_beside(scene, len(gradients_BD)))
        noised = accumulator.finish(seeds.of("step", step))
        mean_D = torch.from_numpy(noised.gradient_D / recipe.divisor).float().to(scene.device)
        parameters = [p.detach() for p in descent(parameters, list(scene.placed(mean_D).values()))]
    return (flatten(parameters) - flatten(scene.parameters)) * recipe.factor


def _beside(
    scene: Scene, count: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_] | None]:
    """Give metrics of zero, the mask, and where the unit is a user, one user a record."""
    everyone = np.ones(count, dtype=np.bool_)
    metrics_NM = np.zeros((count, scene.plan.metrics_length), dtype=np.float32)
    return metrics_NM, everyone, everyone if scene.plan.unit == "user" else None


def _delta(scene: Scene, moved_D: Tensor) -> Delta:
    return Delta(_float32(moved_D), scene.spec.digest)


def _float32(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().cpu().to(torch.float32).numpy()
    return array
