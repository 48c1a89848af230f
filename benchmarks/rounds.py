"""Measure rounds per second of a whole consortium on this machine, real in every part.

    python -m benchmarks.rounds [--sites 5] [--rounds 60] [--peer] [--json FILE]

One process for the aggregator, one for each site's daemon and one for its trainer; enrolment, mTLS
on loopback, a sealed manifest, full secure aggregation (SA-1), record-distributed DP with durable
slots and ledger, and a 10,029-parameter model that trains on 2,000 synthetic records a site (drawn
here from a fixed seed). The named baseline, with ``--peer``, is Flower 1.42's deployment engine in
the same run, on as many nodes and parameters; it does less (see ``peer_flower``).

``rounds_per_s`` is the steady rate past the warm-up (see ``round_clock``). CPU times are those of
whole processes between the first push past the warm-up and a push near the end, per round; for
daemons and trainers they are the mean of a site. Bytes are the aggregator's counts of what each
site sent and was sent, mean of a site and round.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium, SitePlan
from aggregator.cli.output import table_of
from aggregator.cli.submission import Submission, prepare, requests_of
from benchmarks import figures, peer_flower
from benchmarks.job_text import with_values
from benchmarks.process_cost import AGGREGATOR, PARTS, cpu_s
from benchmarks.round_clock import Pace, commit_times, steady_pace
from benchmarks.scratch import scratch_folder
from privacy.planning import CohortRules
from tidegate.v1 import operator_pb2

APP = Path(__file__).parent / "apps" / "mlp10k"
COLUMNS = 32
RECORDS = 2000
SAMPLING_RATE = 0.02
COLLUDERS = 1


@dataclass(frozen=True)
class Run:
    """What one run of a job gave."""

    pace: Pace
    cpu_ms: dict[str, float]
    job: operator_pb2.Job


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, default=5, help="sites, at least 4")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the job")
    parser.add_argument("--warm-up", type=int, default=5, help="rounds that do not count")
    parser.add_argument("--peer", action="store_true", help="run Flower's engine beside it")
    parser.add_argument("--peer-rounds", type=int, default=4, help="rounds of the peer")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if options.sites < 4 or options.rounds < options.warm_up + 2:
        parser.error("needs at least 4 sites, and 2 rounds more than the warm-up")
    return options


def min_survivors(sites: int) -> int:
    """Give N_min: the fewest that a cohort of all sites can open, and never below 4 (c = 1)."""
    return max(4, 2 * sites // 3 + 1)


def main() -> None:
    options = parse()
    out = figures.console()
    with scratch_folder() as scratch:
        try:
            result = _ours(options, scratch, out)
            if options.peer:
                result |= _peer(options, int(result["parameters"]), out)
        except KeyboardInterrupt:
            sys.exit(130)
    _show(result, out)
    figures.write_json(options.json, result)


def _ours(options: argparse.Namespace, scratch: Path, out: Console) -> dict[str, Any]:
    values = {
        "rounds": options.rounds,
        "target_sites": options.sites,
        "expected_batch_size": round(SAMPLING_RATE * RECORDS * options.sites),
    }
    submission = prepare(APP, with_values((APP / "job.toml").read_text(), values))
    rules = CohortRules(COLLUDERS, min_survivors(options.sites), options.sites)
    sites = [_site(scratch, index, submission, rules) for index in range(options.sites)]
    with Consortium(scratch / "consortium", out.print) as consortium:
        out.print(f"starting an aggregator and {len(sites)} edge nodes ...")
        consortium.start_aggregator("rounds-benchmark")
        consortium.enrol(sites)
        consortium.seal(COLLUDERS, min_survivors(len(sites)))
        consortium.start_sites(sites)
        out.print(f"running {options.rounds} rounds of {submission.parameters:,} parameters ...")
        run = _run_job(consortium, submission, options.warm_up)
    return _figures(run, submission, options.sites) | {"fsync_ms": figures.fsync_ms(scratch)}


def _site(scratch: Path, index: int, submission: Submission, rules: CohortRules) -> SitePlan:
    """Make a site's folder with its synthetic shard; what its policy allows is the job itself."""
    folder = scratch / "sites" / f"site-{index}"
    folder.mkdir(parents=True, mode=0o700)
    np.savez(folder / "shard.npz", **synthetic_shard(index))
    return SitePlan.for_job(folder, submission, rules)


def synthetic_shard(seed: int) -> dict[str, Any]:
    """Draw a site's records: 32 standard-normal columns, a label from a noisy linear rule."""
    draw = np.random.default_rng(seed)
    inputs_NF = draw.standard_normal((RECORDS, COLUMNS)).astype(np.float32)
    weights_F = np.random.default_rng(1_000_003).standard_normal(COLUMNS) / np.sqrt(COLUMNS)
    scores_N = inputs_NF @ weights_F + 0.5 * draw.standard_normal(RECORDS)
    table = {f"x{column:02d}": inputs_NF[:, column] for column in range(COLUMNS)}
    return {"label": (scores_N > 0).astype(np.float32), **table}


def _run_job(consortium: Consortium, submission: Submission, warm_up: int) -> Run:
    """Submit the job and watch it as the command line does; sample CPU times on the way."""
    pids = {name: process.pid for name, process in consortium.processes.items()}
    costs: list[tuple[int, dict[str, float]]] = []
    job = operator_pb2.Job()
    with operator_api(consortium.operator()) as api:
        job_id = api.SubmitJob(requests_of(submission)).job_id
        for update in api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id)):
            job = update.job
            enough = job.round >= (warm_up if not costs else costs[-1][0] + 10)
            if job.state == "running" and enough:
                costs.append((job.round, cpu_s(pids)))
    consortium.check_alive()
    if job.state != "finished":
        raise RuntimeError(f"the job {job.state}: {job.detail} {' | '.join(job.log)}")
    committed_s = commit_times(consortium.folder / "aggregator" / "aggregator.sqlite")
    return Run(steady_pace(committed_s, warm_up), _cpu_ms_per_round(costs, len(pids) - 1), job)


def _cpu_ms_per_round(costs: list[tuple[int, dict[str, float]]], sites: int) -> dict[str, float]:
    """Give CPU milliseconds a round: of the aggregator, and of one site's daemon and trainer."""
    if len(costs) < 2:
        return dict.fromkeys(PARTS, float("nan"))
    (first_round, first), (last_round, last) = costs[0], costs[-1]
    share = {part: 1 if part == AGGREGATOR else sites for part in PARTS}
    rounds = last_round - first_round
    return {part: 1000 * (last[part] - first[part]) / rounds / share[part] for part in PARTS}


def _figures(run: Run, submission: Submission, sites: int) -> dict[str, Any]:
    job, pace = run.job, run.pace
    return {
        "rounds_per_s": pace.rounds_per_s,
        "median_round_ms": pace.median_ms,
        "counted_rounds": pace.rounds,
        "sites": sites,
        "rounds": job.round,
        "parameters": submission.parameters,
        "cpu_ms_aggregator": run.cpu_ms[AGGREGATOR],
        "cpu_ms_daemon": run.cpu_ms["daemon"],
        "cpu_ms_trainer": run.cpu_ms["trainer"],
        "bytes_up": statistics.fmean(site.bytes_up for site in job.sites) / job.round,
        "bytes_down": statistics.fmean(site.bytes_down for site in job.sites) / job.round,
        "attempts_aborted": job.attempts_aborted,
        "epsilon": max(site.epsilon for site in job.sites),
        "metrics": dict(job.metrics),
    }


def _peer(options: argparse.Namespace, parameters: int, out: Console) -> dict[str, Any]:
    out.print(f"running {options.peer_rounds} rounds of Flower's deployment engine ...")
    with peer_flower.FlowerDeployment(options.sites) as peer:
        config = {"rounds": options.peer_rounds, "parameters": parameters}
        rounds_s = peer.run(peer_flower.APP, config).rounds_s
    counted_s = rounds_s[1:] or rounds_s  # the first also starts the clients
    return {
        "peer": "Flower 1.42 deployment engine",
        "peer_lacks": peer_flower.LACKS,
        "peer_rounds_per_s": 1 / statistics.fmean(counted_s),
        "peer_median_round_ms": 1000 * statistics.median(counted_s),
        "peer_rounds_s": rounds_s,
    }


def _show(result: dict[str, Any], out: Console) -> None:
    columns = ["figure", "#Tidegate"]
    rows = [
        ["rounds/s, steady", f"{result['rounds_per_s']:.2f}"],
        ["ms a round, median", f"{result['median_round_ms']:.1f}"],
        ["CPU ms a round: aggregator", f"{result['cpu_ms_aggregator']:.1f}"],
        ["CPU ms a round: a daemon", f"{result['cpu_ms_daemon']:.1f}"],
        ["CPU ms a round: a trainer", f"{result['cpu_ms_trainer']:.1f}"],
        ["bytes up, a site and round", f"{result['bytes_up']:,.0f}"],
        ["bytes down, a site and round", f"{result['bytes_down']:,.0f}"],
        ["fsync of this disk, ms", f"{result['fsync_ms']:.2f}"],
        ["attempts aborted", str(result["attempts_aborted"])],
    ]
    if "peer" in result:
        columns.append(f"#{result['peer']}")
        theirs = [
            f"{result['peer_rounds_per_s']:.3f}",
            f"{result['peer_median_round_ms']:,.0f}",
        ]
        for row, value in zip(rows, [*theirs, *[""] * (len(rows) - len(theirs))], strict=True):
            row.append(value)
    title = f"{result['sites']} sites, {result['parameters']:,} parameters"
    out.print(table_of(title, columns, rows))
    out.print(
        f"counted {result['counted_rounds']} rounds past the warm-up; mTLS, SA-1, record-level DP,"
        f" durable slots, real training; epsilon {result['epsilon']:.3f}"
    )
    if "peer" in result:
        out.print(f"The peer's rounds have {result['peer_lacks']}.")


if __name__ == "__main__":
    main()
