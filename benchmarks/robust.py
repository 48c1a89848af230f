"""Measure what groups cost: the noise of a median over groups against that of one cohort's mean.

    python -m benchmarks.robust [--length 20000] [--json FILE]

Every site adds a noise share of the real pipeline to nothing; the sums are decoded as the
aggregator decodes them. Each group carries whole noise, so two manifests count: the one that the
groups need, whose N_min fits a group, and the one that a single cohort of all sites could have,
whose larger N_min lets each site add less. Figures are deviations of a coordinate, as multiples of
the single cohort's; they are ratios of noise and depend on no machine.
"""

import argparse
from pathlib import Path

import numpy as np

from aggregator.cli.output import table_of
from aggregator.combine import combine
from benchmarks import figures
from privacy.decode import decode_sum
from privacy.noise import add_skellam_noise
from privacy.planning import derive_encoding
from privacy.quantise import QuantisedDelta
from privacy.secagg.encoding import hash_of
from privacy.spec import TensorSpec, VectorSpec
from privacy.terms import CohortRules
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import Combine, JobFile, Robust

JOB = b"""
[job]
name = "robust"
dataset = "none"
rounds = 1
[privacy]
mode = "record-distributed"
epsilon = 100.0
delta_dp = 1e-5
sampling_rate = 0.01
clipping_norm = 1.0
expected_batch_size = 1000
noise_multiplier = 1.0
[strategy]
name = "FedAvg"
[round]
target_sites = 5
"""
COLLUDERS = 1
GROUP_SITES = 5
RULES = (
    Robust(3, Combine.MEDIAN),
    Robust(4, Combine.MEDIAN),
    Robust(5, Combine.MEDIAN),
    Robust(5, Combine.TRIMMED_MEAN, 1),
    Robust(9, Combine.MEDIAN),
    Robust(9, Combine.TRIMMED_MEAN, 2),
)
COLUMNS = ("combine", "#groups", "#trim", "#sites", "#same manifest", "#own manifest", "#in theory")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=20_000, help="coordinates of the vector")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if options.length < 1000:
        parser.error("needs 1000 coordinates at least: the figures are their deviations")
    return options


def min_survivors(sites: int) -> int:
    """Give the largest N_min that costs a cohort nothing: SA-1's own threshold."""
    return 2 * sites // 3 + 1


def mean_of(length: int, sites: int, least: int, cohort: int, name: str) -> np.ndarray:
    """Give the decoded noise of one sum, over its part of the expected batch.

    Args:
        length: D.
        sites: In the sum.
        least: N_min of the manifest.
        cohort: Sites of the round.
        name: Fixes the noise.
    """
    job = JobFile.parse(JOB)
    spec = VectorSpec((TensorSpec("w", (length,)),))
    rules = CohortRules(COLLUDERS, least, cohort)
    plan = derive_encoding(privacy_terms(job), spec, rules, bytes(32))
    total = np.zeros(plan.length, dtype=np.int64)
    for site in range(sites):
        zero = QuantisedDelta(np.zeros(plan.length, dtype=np.int64), plan.sensitivity)
        seed = hash_of("benchmark", name, site)
        total += add_skellam_noise(zero, plan.noise_share, seed).vector_D
    ring_sum = (total % (1 << plan.bits)).astype(np.uint32)
    divisor = plan_batch(job) * sites / cohort
    return decode_sum(plan, ring_sum, divisor).gradient_D


def plan_batch(job: JobFile) -> float:
    """Give the expected batch of the whole cohort."""
    return privacy_terms(job).expected_batch_size


def measure(rule: Robust, length: int) -> dict[str, float]:
    """Measure one rule with groups of `GROUP_SITES` sites."""
    cohort = rule.groups * GROUP_SITES
    least = min_survivors(GROUP_SITES)
    groups = [
        mean_of(length, GROUP_SITES, least, cohort, f"group {index}")
        for index in range(rule.groups)
    ]
    combined = float(np.std(combine(groups, rule)))
    same = float(np.std(mean_of(length, cohort, least, cohort, "one cohort")))
    own = float(np.std(mean_of(length, cohort, min_survivors(cohort), cohort, "larger N_min")))
    normal = np.random.default_rng(0).normal(size=(rule.groups, 200_000))
    theory = float(np.std(combine(list(normal), rule))) * rule.groups**0.5
    return {"sites": cohort, "same": combined / same, "own": combined / own, "theory": theory}


def main() -> None:
    """Measure all rules and show them."""
    options = parse()
    results = [(rule, measure(rule, options.length)) for rule in RULES]
    rows = [
        (
            str(rule.combine),
            str(rule.groups),
            str(rule.trim or "-"),
            f"{found['sites']}",
            f"{found['same']:.2f}",
            f"{found['own']:.2f}",
            f"{found['theory']:.2f}",
        )
        for rule, found in results
    ]
    title = "deviation of the noise, one cohort's mean = 1"
    figures.console().print(table_of(title, COLUMNS, rows))
    kept = [
        {"groups": r.groups, "combine": str(r.combine), "trim": r.trim, **f} for r, f in results
    ]
    figures.write_json(options.json, {"length": options.length, "rules": kept})


if __name__ == "__main__":
    main()
