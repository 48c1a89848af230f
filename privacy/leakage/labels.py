"""A1: count labels by what they do to the last layer.

The gradient of a classifier's last layer says how often each label was there (iDLG, arXiv
2001.02610; LLG, arXiv 2105.09369). Formulas for that know one loss and one step. Here the attacker
simulates: made-up batches go through the site's unrolled training, and the best linear estimate of
the counts from the last layer's coordinates, given these examples and the known noise, is applied
to what is observed. Under enough noise it gives the prior's counts, which are the baseline's.

Shapes: R = simulations, K = labels, F = coordinates looked at.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from privacy.leakage.effort import Effort
from privacy.leakage.fields import Batch, Field, FieldKind
from privacy.leakage.matching import sum_of_sites
from privacy.leakage.release import Release
from privacy.leakage.scene import Scene
from privacy.leakage.unrolled import SiteUpdate
from privacy.leakage.verdict import (
    MAX_SHOWN,
    Evidence,
    EvidenceKind,
    Finding,
    Metric,
    judge_labels,
    not_applicable,
)

ATTACK, TITLE = "A1", "Label counts from the last layer"
_MAX_LABELS = 64
_RIDGE = 1e-6
_LEAST_ROUNDS = 40


def attack_labels(
    releases: Sequence[Release], effort: Effort, source: torch.Generator
) -> list[Finding]:
    """Estimate how often each label is behind each release.

    Args:
        releases: Independent victims of one exposure.
        effort: How hard to try.
        source: Where the simulated batches come from.
    """
    scene, exposure = releases[0].scene, releases[0].exposure
    labels = [field for field in scene.fields if field.name in scene.targets and _is_label(field)]
    if not labels:
        reason = f"no column is a label of at most {_MAX_LABELS} values that only the loss sees"
        return [not_applicable(ATTACK, TITLE, exposure, Metric.LABELS, reason)]
    return [_finding(label, releases, effort, source) for label in labels]


def _is_label(field: Field) -> bool:
    if field.kind is FieldKind.CATEGORY:
        return field.categories <= _MAX_LABELS
    return field.bounds == (0.0, 1.0)


def _finding(
    label: Field, releases: Sequence[Release], effort: Effort, source: torch.Generator
) -> Finding:
    estimate = _Estimate(label, releases[0], effort, source)
    true_TK = torch.stack([counts(label, release.batch) for release in releases])
    found_TK = torch.stack([estimate(release) for release in releases])
    blind_TK = torch.full_like(true_TK, releases[0].records / true_TK.shape[1])
    score, baseline = _agreement(found_TK, true_TK), _agreement(blind_TK, true_TK)
    names = tuple(f"{label.name}={int(label.bounds[0]) + k}" for k in range(true_TK.shape[1]))
    return Finding(
        attack=ATTACK,
        title=TITLE,
        exposure=releases[0].exposure,
        metric=Metric.LABELS,
        score=score,
        baseline=baseline,
        verdict=judge_labels(score, baseline),
        reason=f"labels {label.name!r}, {len(names)} values, {len(releases)} batches of"
        f" {releases[0].records}: counts belong to no one record, so they warn and do not fail",
        details={"records": float(true_TK.sum())},
        evidence=Evidence(
            EvidenceKind.COUNTS,
            names,
            true_TK[:MAX_SHOWN].numpy(),
            found_TK[:MAX_SHOWN].numpy(),
        ),
    )


def counts(label: Field, batch: Batch) -> Tensor:
    """Count each label of a batch, float32, shape (K,)."""
    places = (batch[label.name].reshape(-1).round() - label.bounds[0]).to(torch.int64).cpu()
    return torch.bincount(places, minlength=label.categories).to(torch.float32)


def _agreement(found_TK: Tensor, true_TK: Tensor) -> float:
    """Give the share of records whose label is counted right."""
    return float(1 - (found_TK - true_TK).abs().sum() / (2 * true_TK.sum()))


class _Estimate:
    """The best linear estimate of counts from the last layer of a release."""

    def __init__(
        self, label: Field, release: Release, effort: Effort, source: torch.Generator
    ) -> None:
        self._scene, self._records = release.scene, release.records
        self._places = last_layer(release.scene)
        rounds = max(_LEAST_ROUNDS, 4 * label.categories, effort.iterations // 5)
        seen, told = [], []
        for _ in range(rounds):
            batch = release.scene.draw(release.records, source)
            updates = [SiteUpdate(release.scene) for _ in range(release.sites)]
            predicted_D = release.project(sum_of_sites(release, updates, batch).detach())
            seen.append(self._look(predicted_D))
            told.append(counts(label, batch))
        seen_RF, told_RK = torch.stack(seen), torch.stack(told).double()
        self._seen_F, self._told_K = seen_RF.mean(dim=0), told_RK.mean(dim=0)
        around_RF, off_RK = seen_RF - self._seen_F, told_RK - self._told_K
        spread_FF = around_RF.T @ around_RF / rounds
        errors = release.error_std**2 + _RIDGE * spread_FF.diagonal().mean() + 1e-30
        spread_FF += errors * torch.eye(len(spread_FF), dtype=torch.float64)
        self._gain_FK = torch.linalg.solve(spread_FF, around_RF.T @ off_RK / rounds)
        self._prior_K = torch.full((label.categories,), release.records / label.categories)

    def __call__(self, release: Release) -> Tensor:
        """Estimate the counts behind a release, shape (K,): none below 0, all records counted."""
        off_F = self._look(release.observed_D) - self._seen_F
        found_K: Tensor = (self._prior_K + off_F @ self._gain_FK).float().clamp_min(0)
        shared_K: Tensor = found_K * (self._records / found_K.sum().clamp_min(1e-9))
        return shared_K

    def _look(self, vector_D: Tensor) -> Tensor:
        placed = self._scene.placed(vector_D.detach().double().cpu())
        return torch.cat([_narrow(placed[name]) for name in self._places])


def last_layer(scene: Scene) -> list[str]:
    """Name the last weight matrix, and what stands behind it."""
    names = [tensor.name for tensor in scene.spec.tensors]
    wide = [i for i, tensor in enumerate(scene.spec.tensors) if len(tensor.shape) > 1]
    return names[wide[-1] if wide else 0 :]


def _narrow(values: Tensor) -> Tensor:
    """Sum a matrix over its inputs, one number an output, its noise as large as before."""
    if values.ndim == 1:
        return values
    rows = values.flatten(1)
    return rows.sum(dim=1) / math.sqrt(rows.shape[1])
