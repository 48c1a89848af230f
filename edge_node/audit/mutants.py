"""Break the pipeline on purpose, one stage at a time: an audit must notice, or it shows nothing.

Each mutant is applied in this process alone; no product code knows of it. The faults are those of
privacy.md, "DP audit", and a few more; each is one that somebody's system has had. Where the
pipeline checks itself a second time (the integer norm of each record), a mutant breaks that check
too, or nothing would be wrong.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from edge_node.audit import faults_in_plans as plans
from edge_node.audit import faults_in_updates as updates


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Attributes:
        name: Short, of letters and hyphens.
        fault: What is wrong.
        applied: Makes it so while it is open.
    """

    name: str
    fault: str
    applied: Callable[[], AbstractContextManager[None]]


MUTANTS = (
    Mutant("half-noise", "half the standard deviation", partial(updates.less_noise, 0.25)),
    Mutant("less-noise", "30 % less standard deviation", partial(updates.less_noise, 0.49)),
    Mutant("last-bare", "the last coordinate has no noise", updates.last_coordinate_bare),
    Mutant("no-clip", "records are not clipped, nor their norms checked", updates.no_clip),
    Mutant("norm-unchecked", "rounding may leave the ball of D2", updates.norm_unchecked),
    Mutant("seed-by-site", "one noise seed for all rounds of a site", updates.one_seed_a_site),
    Mutant("seed-by-round", "one noise seed for all sites of a round", updates.one_seed_a_round),
    Mutant("rounding-omitted", "D2 = C*s, without sqrt(d)", plans.rounding_omitted),
    Mutant("noise-for-clip", "V = (z*C*s)^2 instead of (z*D2)^2", plans.noise_for_the_clip_alone),
    Mutant(
        "noise-by-members",
        "V/n a site: too little once one drops out",
        partial(plans.noise_split_among, lambda rules: rules.members),
    ),
    Mutant(
        "colluders-counted",
        "V/N_min a site: as if colluders kept their noise secret",
        partial(plans.noise_split_among, lambda rules: rules.min_survivors),
    ),
    Mutant(
        "surplus-of-colluders",
        "surplus noise removed as if colluders kept theirs secret",
        plans.surplus_of_colluders,
    ),
    Mutant("eager-model", "gradients at an own, un-noised model", updates.eager_model),
    Mutant("bare-metrics", "metrics sent without noise", updates.bare_metrics),
    Mutant("actual-batch", "sums divided by the actual batch size", updates.mean_of_the_batch),
    Mutant("oversampled", "records sampled at 1.5 q", updates.sampled_too_often),
)
