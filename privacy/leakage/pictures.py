"""A3: find pictures whose unrolled update is the observed one (`privacy.leakage.matching`).

The other columns, labels among them, are taken as known: A1 finds them, and an audit may think
better of an attacker than is true, never worse. The guess without data is one shade of grey, the
mean of made-up pictures.

Shapes: N = records, C, H, W = channels and pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privacy.leakage.candidates import Candidate
from privacy.leakage.effort import Effort
from privacy.leakage.fields import Field, FieldKind, draw_records
from privacy.leakage.matching import Search, search
from privacy.leakage.release import Release
from privacy.leakage.scores import matched_pictures, psnr, ssim
from privacy.leakage.verdict import (
    MAX_SHOWN,
    PSNR_FAIL_DB,
    PSNR_MARGIN_DB,
    SSIM_FAIL,
    Evidence,
    EvidenceKind,
    Finding,
    Metric,
    judge_pictures,
    not_applicable,
)

ATTACK, TITLE = "A3", "Gradient inversion of pictures, the site's steps unrolled"
_RATE = 0.1
_SMOOTHNESS = 1e-2
_PRIOR_PICTURES = 64


@dataclass(frozen=True)
class _Outcome:
    """Pictures of one kind: the originals beside what was found for each."""

    originals: Tensor
    found: Tensor


def attack_pictures(
    releases: Sequence[Release], effort: Effort, source: torch.Generator
) -> list[Finding]:
    """Invert each picture column of each release.

    Args:
        releases: Independent victims of one exposure.
        effort: How hard to try.
        source: Where first guesses come from.
    """
    scene = releases[0].scene
    pictures = [field for field in scene.fields if field.kind is FieldKind.IMAGE]
    if not pictures:
        reason = "no column is a picture"
        return [not_applicable(ATTACK, TITLE, releases[0].exposure, Metric.PSNR, reason)]
    return [_finding(field, releases, effort, source) for field in pictures]


def _finding(
    field: Field, releases: Sequence[Release], effort: Effort, source: torch.Generator
) -> Finding:
    outcomes = [_invert(field, release, effort, source) for release in releases]
    originals = torch.cat([outcome.originals for outcome in outcomes])
    found = torch.cat([outcome.found for outcome in outcomes])
    grey = torch.full_like(originals, _grey(field))
    reached, blind = psnr(found, originals), psnr(grey, originals)
    alike = ssim(found, originals)
    above = reached > blind + PSNR_MARGIN_DB
    best = float(reached[above].max()) if bool(above.any()) else -float("inf")
    closest = float(alike[above].max()) if bool(above.any()) else -float("inf")
    score, baseline = float(reached.mean()), float(blind.mean())
    verdict = judge_pictures(score, baseline, best, closest)
    order = reached.argsort(descending=True)[:MAX_SHOWN]
    return Finding(
        attack=ATTACK,
        title=TITLE,
        exposure=releases[0].exposure,
        metric=Metric.PSNR,
        score=score,
        baseline=baseline,
        verdict=verdict,
        reason=f"{len(reached)} pictures of {field.name!r}: best {float(reached.max()):.1f} dB,"
        f" best SSIM {float(alike.max()):.2f}; a picture of {PSNR_FAIL_DB:g} dB or SSIM"
        f" {SSIM_FAIL:g} fails",
        details={
            "best PSNR, dB": float(reached.max()),
            "mean SSIM": float(alike.mean()),
            "best SSIM": float(alike.max()),
            "records": float(len(reached)),
        },
        evidence=Evidence(
            EvidenceKind.IMAGES, (field.name,), _shown(originals[order]), _shown(found[order])
        ),
    )


def _invert(field: Field, release: Release, effort: Effort, source: torch.Generator) -> _Outcome:
    known = {name: values for name, values in release.batch.items() if name != field.name}
    device = release.scene.device

    def make() -> Candidate:
        return Candidate([field], known, release.records, source, device)

    how = Search(
        effort.iterations,
        effort.restarts,
        rate=_RATE,
        signed=True,
        decay=0.1,
        smoothness=_SMOOTHNESS,
        follow_all=False,
    )
    guess = search(release, make, how)[0].guess[0]
    originals = _planes(field, field.to_unit(release.batch[field.name]))
    return _Outcome(originals, matched_pictures(_planes(field, guess), originals))


def _grey(field: Field) -> float:
    source = torch.Generator().manual_seed(0)
    drawn = draw_records((field,), _PRIOR_PICTURES, source)[field.name]
    return float(field.to_unit(drawn).mean())


def _planes(field: Field, values: Tensor) -> Tensor:
    """Bring pictures into the order (N, C, H, W)."""
    if field.channels_last:
        return values.permute(0, 3, 1, 2)
    return values.unsqueeze(1) if len(field.shape) == 2 else values


def _shown(pictures: Tensor) -> np.ndarray:
    array: np.ndarray = pictures.detach().clamp(0, 1).cpu().to(torch.float32).numpy()
    return array
