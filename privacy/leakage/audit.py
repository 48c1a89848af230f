"""Run every attack on everything that leaves, and put the findings together.

Each exposure is attacked by itself: one site's update, which a broken secure aggregation would
reveal, and the sum that the aggregator opens. Records are made up from the declared columns unless
others are given. A version of zeros hides what later versions give away (an adapter whose second
factor is zero passes no gradient on), so matrices of zeros are filled as training will fill them.

Shapes: S = sites, B = records of a site.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from privacy.errors import UsageError
from privacy.leakage.effort import Effort
from privacy.leakage.features import attack_features
from privacy.leakage.fields import Batch
from privacy.leakage.first_layer import (
    IMPRINT,
    PASSIVE,
    attack_first_layer,
    find_first_layer,
    first_layer_not_applicable,
    imprinted,
)
from privacy.leakage.labels import attack_labels
from privacy.leakage.pictures import attack_pictures
from privacy.leakage.release import Release, release_of
from privacy.leakage.scene import Scene, still, with_weights
from privacy.leakage.tables import attack_tables
from privacy.leakage.tokens import attack_tokens
from privacy.leakage.verdict import Exposure, Finding, Report, report_of

_FILLED_STD = 0.02
_COUNTED = 4  # times as many victims for counts: they are cheap, and a batch is one count


def audit(
    scene: Scene, seed: int, effort: Effort | None = None, records: Batch | None = None
) -> Report:
    """Attack a job on made-up records, or on given ones.

    The model's parameters are the same afterwards. The same arguments give the same report, on the
    same version of torch with the same number of threads.

    Args:
        scene: The job.
        seed: Of made-up records, roundings, noise and first guesses.
        effort: How hard to try.
        records: S*B records or more, columns by name, to attack in place of made-up ones. The
            report then shows them: it must not leave the site.

    Raises:
        UsageError: The given records are too few, or lack a column.
    """
    effort = effort or Effort()
    if records is not None:
        _check(scene, records)
    with still(scene.model), with_weights(scene, _filled(scene, seed)) as lively:
        findings = [
            finding
            for exposure in Exposure
            for finding in _attack(_Victims(lively, exposure, seed, records), effort)
        ]
    return report_of(findings)


class _Victims:
    """Where the records of one exposure come from."""

    def __init__(self, scene: Scene, exposure: Exposure, seed: int, records: Batch | None) -> None:
        self.scene, self.exposure = scene, exposure
        self.sites = 1 if exposure is Exposure.ALONE else scene.sites
        self._seed, self._records = seed, records
        self.source = _source(seed, exposure)

    def releases(self, scene: Scene, trials: int) -> list[Release]:
        """Let victims send, at the weights of a scene of this job."""
        source = _source(self._seed + 1, self.exposure)
        return [
            release_of(scene, self.exposure, self._batch(trial, source), self._seed + trial)
            for trial in range(trials)
        ]

    def _batch(self, trial: int, source: torch.Generator) -> dict[str, Tensor]:
        count = self.sites * self.scene.records
        if self._records is None:
            return self.scene.draw(count, source)
        total = len(next(iter(self._records.values())))
        rows = (torch.arange(count) + trial * count) % total
        names = [field.name for field in self.scene.fields]
        return {name: self._records[name][rows].to(self.scene.device) for name in names}


def _attack(victims: _Victims, effort: Effort) -> list[Finding]:
    """Run all attacks on one exposure."""
    # A sum has as many records as several updates have: it needs fewer trials.
    trials = max(1, -(-effort.trials // victims.sites))
    releases = victims.releases(victims.scene, trials)
    source = victims.source
    return [
        *attack_labels(victims.releases(victims.scene, _COUNTED * trials), effort, source),
        *_attack_first_layer(victims, releases),
        *attack_pictures(releases, effort, source),
        *attack_tokens(releases),
        *attack_tables(releases, effort, source),
        *attack_features(releases, effort, source),
    ]


def _attack_first_layer(victims: _Victims, releases: Sequence[Release]) -> list[Finding]:
    layer = find_first_layer(victims.scene)
    if isinstance(layer, str):
        pair = (PASSIVE, IMPRINT)
        return [first_layer_not_applicable(victims.exposure, title, layer) for title in pair]
    findings = [attack_first_layer(releases, layer, PASSIVE, victims.source)]
    if layer.next_name is None:
        reason = "no fully connected layer stands behind the first"
        return [*findings, first_layer_not_applicable(victims.exposure, IMPRINT, reason)]
    weights = imprinted(victims.scene, layer, victims.source)
    with with_weights(victims.scene, weights) as hostile:
        sent = victims.releases(hostile, len(releases))
        return [*findings, attack_first_layer(sent, layer, IMPRINT, victims.source)]


def _filled(scene: Scene, seed: int) -> list[Tensor]:
    """Give the weights with matrices of zeros filled: what they will be like after some rounds."""
    source = torch.Generator().manual_seed(seed)
    filled = []
    for weights in scene.parameters:
        if weights.ndim > 1 and not bool(weights.any()):
            drawn = _FILLED_STD * torch.randn(weights.shape, generator=source)
            filled.append(drawn.to(weights))
        else:
            filled.append(weights)
    return filled


def _check(scene: Scene, records: Batch) -> None:
    count = scene.sites * scene.records
    for field in scene.fields:
        if field.name not in records:
            raise UsageError(f"the given records have no column {field.name!r}")
        if len(records[field.name]) < count:
            raise UsageError(f"an audit of {scene.sites} sites needs {count} records or more")


def _source(seed: int, exposure: Exposure) -> torch.Generator:
    return torch.Generator().manual_seed(2 * seed + list(Exposure).index(exposure))


__all__ = ["Effort", "Report", "Scene", "audit"]
