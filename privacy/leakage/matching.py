"""Look for records whose update points where the observed one does.

Geiping et al. 2020 (arXiv 2003.14053): cosine distance and total variation, by signed Adam; here
with the whole of the site's training unrolled, and behind the public map. The cosine leaves clip
factors and rates alone; where noise is in the observed vector, its share of the length is known,
and so is how near a true guess can come.

Shapes: D = coordinates of the model vector, S = sites, B = records of a site.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privacy.leakage.candidates import Candidate
from privacy.leakage.fields import Batch
from privacy.leakage.release import Release
from privacy.leakage.unrolled import SiteUpdate

_REFRESH = 10  # iterations between exact clip factors
_TRIAL_SHARE = 6  # of the iterations, for each start but the one that is kept
_DECAYS = (3 / 8, 5 / 8, 7 / 8)


@dataclass(frozen=True)
class Search:
    """How to look.

    Attributes:
        iterations: Of each start that is followed to its end.
        starts: Random first guesses; one is followed, or all.
        rate: Step size, in units of the free numbers.
        signed: Whether only the sign of each gradient counts.
        decay: What the step size is multiplied by, three times on the way.
        smoothness: Weight of the total variation of pictures.
        follow_all: Whether every start is followed to its end.
    """

    iterations: int
    starts: int
    rate: float
    signed: bool
    decay: float
    smoothness: float
    follow_all: bool


@dataclass(frozen=True)
class Found:
    """Where a start has led.

    Attributes:
        guess: As `Candidate.guess` gives it.
        distance: The objective there; lower is better.
    """

    guess: list[Tensor]
    distance: float


def search(release: Release, make: Callable[[], Candidate], how: Search) -> list[Found]:
    """Follow gradients from random guesses; gives what was followed to its end, best first.

    Args:
        release: What is observed, and all that is known.
        make: Draws a first guess.
        how: How to look.
    """
    if how.follow_all:
        runs = [_Run(release, make(), how, how.iterations) for _ in range(how.starts)]
        ends = [run.advance(how.iterations) for run in runs]
    else:
        trial = max(1, how.iterations // _TRIAL_SHARE)
        runs = [_Run(release, make(), how, how.iterations) for _ in range(how.starts)]
        if len(runs) > 1:
            runs = [min(runs, key=lambda run: run.advance(trial).distance)]
        ends = [run.advance(how.iterations) for run in runs]
    return sorted(ends, key=lambda found: found.distance)


class _Run:
    """One start and its way."""

    def __init__(self, release: Release, candidate: Candidate, how: Search, total: int) -> None:
        self._release, self._candidate, self._how = release, candidate, how
        self._updates = [SiteUpdate(release.scene) for _ in range(release.sites)]
        self._optimiser = torch.optim.Adam(candidate.free, lr=how.rate)
        marks = [int(total * share) for share in _DECAYS]
        self._schedule = torch.optim.lr_scheduler.MultiStepLR(self._optimiser, marks, how.decay)
        self._target_D = release.observed_D.float()
        self._done = 0
        self._best = Found(candidate.guess(), float("inf"))

    def advance(self, until: int) -> Found:
        """Go on until so many iterations are done; gives the best so far."""
        while self._done < until:
            self._step()
        return self._best

    def _step(self) -> None:
        objective = self._objective(refresh=self._done % _REFRESH == 0)
        distance = float(objective.detach())
        if distance < self._best.distance:  # false for NaN
            self._best = Found(self._candidate.guess(), distance)
        free = self._candidate.free
        gradients = torch.autograd.grad(objective, free, allow_unused=True, materialize_grads=True)
        for values, gradient in zip(free, gradients, strict=True):
            finite = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
            values.grad = finite.sign() if self._how.signed else finite
        self._optimiser.step()
        self._schedule.step()
        self._candidate.clamp()
        self._done += 1

    def _objective(self, *, refresh: bool) -> Tensor:
        batch = self._candidate.batch()
        predicted_D = sum_of_sites(self._release, self._updates, batch, refresh=refresh)
        predicted_D = self._release.project(predicted_D)
        norms = predicted_D.norm() * self._target_D.norm() + 1e-20
        distance = 1 - (predicted_D * self._target_D).sum() / norms
        objective: Tensor = distance + self._how.smoothness * self._candidate.roughness()
        return objective


def sum_of_sites(
    release: Release, updates: list[SiteUpdate], batch: Batch, *, refresh: bool = True
) -> Tensor:
    """Give the sum of the sites' vectors as a function of all their records, shape (D,)."""
    if len(updates) == 1:
        return updates[0](batch, refresh=refresh)
    size = release.scene.records
    parts = []
    for site, update in enumerate(updates):
        own = {name: values[site * size : (site + 1) * size] for name, values in batch.items()}
        parts.append(update(own, refresh=refresh))
    return torch.stack(parts).sum(dim=0)
