"""Compute a site's update as a function of its records that can be differentiated by them.

An attack that takes a delta of several local steps for one gradient reports 12.8 dB where one that
unrolls the steps gets 26.0: so every step is taken here as the site takes it, clips and optimiser
included. The same code without a graph is what the victims run.

What each record is clipped by is computed as exactly as at the site, and counts as a constant when
the update is differentiated: one backward pass then serves a whole batch.

Shapes: D = coordinates of the model vector, B = records, K = local steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from privacy.leakage.fields import Batch
from privacy.leakage.scene import OptimiserMaker, Scene
from privacy.pipeline import Mode

_TINY = 1e-12  # keeps roots of squared gradients differentiable where a gradient is zero


@dataclass(frozen=True)
class Recipe:
    """How a site makes its vector, in all modes: descent with weighted records, then a clip.

    Attributes:
        steps: K.
        record_clip: Bound on each record's gradient; infinite where there is none.
        divisor: Of each step's sum.
        update_clip: Bound on the whole vector; infinite where there is none.
        rate: Of plain descent.
        optimiser: Takes the steps instead; or None.
        factor: What the difference is multiplied by before its clip.
    """

    steps: int
    record_clip: float
    divisor: float
    update_clip: float
    rate: float
    optimiser: OptimiserMaker | None
    factor: float = 1.0


def recipe_of(scene: Scene) -> Recipe:
    """Read from the plan how a site of this job makes its vector.

    In record-distributed that is minus the sum of clipped gradients: a step of plain descent with
    rate 1.
    """
    plan = scene.plan
    if plan.mode is Mode.RECORD_DISTRIBUTED:
        return Recipe(1, plan.clip_gradient, 1.0, math.inf, 1.0, None)
    steps, rate, factor = scene.local_steps, scene.learning_rate or 0.0, scene.step_factor
    if plan.local is not None:
        clip, divisor = plan.local.clip_gradient, plan.local.expected_batch
        return Recipe(steps, clip, divisor, plan.clip_gradient, rate, scene.optimiser, factor)
    bound = plan.clip_gradient
    return Recipe(steps, math.inf, scene.records, bound, rate, scene.optimiser, factor)


def clip_shares(norms_B: Tensor, bound: float) -> Tensor:
    """Give the factor that brings each norm down to the bound, shape (B,)."""
    if math.isinf(bound):
        return torch.ones_like(norms_B)
    return (bound / norms_B.clamp_min(1e-30)).clamp(max=1.0)


def record_gradients(scene: Scene, parameters: Sequence[Tensor], batch: Batch) -> Tensor:
    """Take each record's gradient, one after the other, shape (B, D)."""
    held = _asking(parameters)
    losses_B = scene.losses(held, batch)
    rows = [
        flatten(torch.autograd.grad(loss, held, retain_graph=True, materialize_grads=True))
        for loss in losses_B
    ]
    return torch.stack(rows)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Put tensors into one vector, shape (D,)."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class SiteUpdate:
    """One site's vector, as a function of its records; the factors of clips are kept for a while.

    The factors are as old as the last call with ``refresh``.
    """

    def __init__(self, scene: Scene, *, clip_update: bool = True) -> None:
        """Take the scene.

        Args:
            scene: The job.
            clip_update: Whether the whole vector is clipped here, too.
        """
        self._scene = scene
        self._recipe = recipe_of(scene)
        if not clip_update:
            self._recipe = replace(self._recipe, update_clip=math.inf)
        self._shares_KB: list[Tensor] = []

    def __call__(self, batch: Batch, *, refresh: bool = True) -> Tensor:
        """Give the vector before map, rounding and noise, shape (D,), with a graph to the batch."""
        recipe = self._recipe
        start = [parameter.detach() for parameter in self._scene.parameters]
        descent = descent_of(recipe, start)
        parameters: list[Tensor] = start
        if refresh:
            self._shares_KB = []
        for step in range(recipe.steps):
            if refresh:
                self._shares_KB.append(self._shares(parameters, batch))
            held = _asking(parameters)
            losses_B = self._scene.losses(held, batch)
            total = (losses_B * self._shares_KB[step]).sum() / recipe.divisor
            gradients = torch.autograd.grad(
                total, held, create_graph=True, allow_unused=True, materialize_grads=True
            )
            parameters = descent(held, gradients)
        update_D = (flatten(parameters) - flatten(start)) * recipe.factor
        if math.isinf(recipe.update_clip):
            return update_D
        norm = (update_D.square().sum() + _TINY**2).sqrt()
        return update_D * (recipe.update_clip / norm).clamp(max=1.0)

    def _shares(self, parameters: Sequence[Tensor], batch: Batch) -> Tensor:
        count = len(next(iter(batch.values())))
        if math.isinf(self._recipe.record_clip):
            return torch.ones(count, device=self._scene.device)
        still = {name: values.detach() for name, values in batch.items()}
        fixed = [parameter.detach() for parameter in parameters]
        norms_B = record_gradients(self._scene, fixed, still).norm(dim=1)
        return clip_shares(norms_B, self._recipe.record_clip)


Step = Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]


def descent_of(recipe: Recipe, start: Sequence[Tensor]) -> Step:
    """Give what takes one step after another, from parameters along gradients."""
    if recipe.optimiser is not None:
        return _OptimiserSteps(recipe.optimiser, start)

    def descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        return [p - recipe.rate * g for p, g in zip(parameters, gradients, strict=True)]

    return descend


class _OptimiserSteps:
    """A torch optimizer whose steps stay in the graph, by its own ``differentiable`` switch."""

    def __init__(self, make: OptimiserMaker, start: Sequence[Tensor]) -> None:
        leaves = [nn.Parameter(parameter.clone()) for parameter in start]
        self._optimiser = make(leaves)
        order = {id(leaf): place for place, leaf in enumerate(leaves)}
        self._places = [[order[id(p)] for p in g["params"]] for g in self._optimiser.param_groups]
        self._optimiser.defaults["differentiable"] = True  # what a step's own guard looks at
        for group in self._optimiser.param_groups:
            group.update({"differentiable": True, "foreach": False, "fused": False})

    def __call__(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        # A step writes into its parameters: into copies, which nothing else has in its graph.
        fresh = [parameter.clone() for parameter in parameters]
        state = self._optimiser.state
        for group, places in zip(self._optimiser.param_groups, self._places, strict=True):
            for slot, place in enumerate(places):
                old, new = group["params"][slot], fresh[place]
                new.grad = gradients[place] + _TINY
                if old in state:
                    state[new] = state.pop(old)
                group["params"][slot] = new
        with torch.enable_grad():
            self._optimiser.step()
        return fresh


def _asking(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Give the parameters so that gradients can be taken by them: leaves ask, others do anyway."""
    return [p if p.requires_grad else p.detach().requires_grad_() for p in parameters]
