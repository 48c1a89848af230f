"""Time rounds over sizes of models and federations, beside Flower and NVFLARE.

    python -m benchmarks.round_grid [--sites 2,4,8] [--mb 0.1,10,100] [--ours-only] [--json FILE]

Ours is whole in every part: one process for the aggregator, one for each site's daemon and one for
its trainer; mTLS on loopback, SA-1 with one colluder more than none, record-distributed DP with
durable slots and ledgers, and a real gradient of a real model (``apps/chain``) a round. With
``--mode none`` there are masks and no noise. SA-1 needs four sites: with two there is no secure
sum, as each would learn the other's update, so ours has no row there and the peers do.

The peers (see ``peer_flower`` and ``peer_nvflare``) exchange as many parameters and do less. Times
are medians of the rounds past the first; ours are those between commits in the aggregator's
journal. Memory is the peak resident set of the aggregator, of a peer's the sum over its parts.
"""

import argparse
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from aggregator.cli.consortium import Consortium
from aggregator.cli.output import table_of
from aggregator.cli.submission import Submission, prepare
from benchmarks import figures, peer_flower, peer_nvflare, rounds
from benchmarks.bench_site import BenchSite
from benchmarks.job_run import run_job
from benchmarks.job_text import with_values
from benchmarks.process_cost import AGGREGATOR, cpu_s, forget_peak_rss, peak_rss_bytes
from benchmarks.round_clock import commit_times, steady_pace
from benchmarks.scratch import scratch_folder

APP = Path(__file__).parent / "apps" / "chain"
CHAINS = {0.1: (160, 1), 10.0: (512, 10), 100.0: (1024, 25)}
"""Width and layers of the model, by megabytes of float32."""

MODES = ("record-distributed", "none")
COLLUDERS = 1
LEAST_SITES = 4


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", default="2,4,8", help="sites, several with commas")
    parser.add_argument("--mb", default="0.1,10,100", help="model sizes: 0.1, 10 and 100")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of each job, 3 at least")
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help="privacy mode of ours")
    parser.add_argument("--ours-only", action="store_true", help="leave the peers out")
    parser.add_argument("--peers", default="flower,nvflare", help="which peers to run")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    try:
        options.sites = [int(text) for text in options.sites.split(",")]
        options.mb = [float(text) for text in options.mb.split(",")]
    except ValueError:
        parser.error("--sites and --mb are numbers with commas between")
    options.peers = [] if options.ours_only else options.peers.split(",")
    if min(options.sites) < 2 or not set(options.mb) <= set(CHAINS) or options.rounds < 3:
        parser.error("needs two sites, sizes of 0.1, 10 and 100 MB, and 3 rounds at least")
    if not set(options.peers) <= {"flower", "nvflare"}:
        parser.error("the peers are flower and nvflare")
    return options


def parameters_of(mb: float) -> int:
    """Give the number of parameters of a size."""
    width, layers = CHAINS[mb]
    return layers * width**2


def main() -> None:
    options = parse()
    out = figures.console()
    programs = peer_nvflare.install() if "nvflare" in options.peers else None
    cells: list[dict[str, Any]] = []
    with scratch_folder() as scratch:
        try:
            for sites in options.sites:
                found = {mb: {"sites": sites, "mb": mb} for mb in options.mb}
                if sites >= LEAST_SITES:
                    _ours(options, sites, scratch / str(sites), found, out)
                for mb, cell in found.items():
                    _peers(options, programs, cell, parameters_of(mb), out)
                cells += found.values()
        except KeyboardInterrupt:
            sys.exit(130)
    out.print(table_of(f"one round, mode {options.mode}", COLUMNS, [_row(cell) for cell in cells]))
    result = cells[0] if len(cells) == 1 else {"cells": cells}
    figures.write_json(options.json, {**result, "mode": options.mode})


def _ours(
    options: argparse.Namespace, sites: int, folder: Path, found: dict[float, Any], out: Console
) -> None:
    """Run all sizes one after the other in one consortium."""
    submissions = {mb: _submission(options, sites, mb, folder / f"app-{mb:g}") for mb in options.mb}
    apps = [submission.app_sha256 for submission in submissions.values()]
    with Consortium(folder / "consortium", out.print) as consortium:
        consortium.start_aggregator("round-grid")
        plans = [_site(folder / "sites" / f"site-{index}", index, apps) for index in range(sites)]
        consortium.enrol(plans)
        consortium.seal(COLLUDERS, rounds.min_survivors(sites))
        consortium.start_sites(plans)
        for mb, submission in submissions.items():
            out.print(f"{sites} sites, {mb:g} MB: ours ...")
            found[mb] |= _measure(consortium, submission)
            out.print(f"  {found[mb]['ours_round_s']:.3f} s a round")


def _submission(options: argparse.Namespace, sites: int, mb: float, folder: Path) -> Submission:
    width, layers = CHAINS[mb]
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    task = folder / "task.py"
    task.write_bytes(with_values(task.read_text(), {"WIDTH": width, "LAYERS": layers}))
    job = APP / ("job.toml" if options.mode == MODES[0] else "masks-only.toml")
    values = {"rounds": options.rounds, "target_sites": sites}
    if options.mode == MODES[0]:
        values["expected_batch_size"] = 2 * sites
    return prepare(folder, with_values(job.read_text(), values))


def _site(folder: Path, index: int, apps: list[bytes]) -> BenchSite:
    folder.mkdir(parents=True, mode=0o700)
    np.savez(folder / "synthetic.npz", **rounds.synthetic_shard(index))
    return BenchSite.of(folder, ["synthetic"], apps)


def _measure(consortium: Consortium, submission: Submission) -> dict[str, Any]:
    pids = {name: process.pid for name, process in consortium.processes.items()}
    forget_peak_rss(pids[AGGREGATOR])
    idle = peak_rss_bytes(pids[AGGREGATOR])
    costs: list[tuple[int, dict[str, float]]] = []
    job = run_job(consortium, submission, lambda seen: costs.append((seen, cpu_s(pids))))
    times_s = commit_times(consortium.folder / "aggregator" / "aggregator.sqlite", job.job_id)
    (first, before), (last, after) = costs[0], costs[-1]
    spent = {part: (after[part] - before[part]) / max(1, last - first) for part in after}
    return {
        "parameters": submission.parameters,
        "ours_round_s": steady_pace(times_s, 1).median_ms / 1000,
        "ours_rss": peak_rss_bytes(pids[AGGREGATOR]),
        "ours_rss_idle": idle,
        "ours_cpu_s": sum(spent.values()),
        "ours_cpu_s_by_part": spent,
        "ours_bytes_up": statistics.fmean(site.bytes_up for site in job.sites) / job.round,
        "ours_bytes_down": statistics.fmean(site.bytes_down for site in job.sites) / job.round,
        "attempts_aborted": job.attempts_aborted,
    }


def _peers(
    options: argparse.Namespace,
    programs: Path | None,
    cell: dict[str, Any],
    parameters: int,
    out: Console,
) -> None:
    if "flower" in options.peers:
        out.print(f"{cell['sites']} sites, {cell['mb']:g} MB: Flower ...")
        with peer_flower.FlowerDeployment(cell["sites"]) as flower:
            config = {"rounds": options.rounds, "parameters": parameters}
            cell |= _of_peer("flower", flower.run(peer_flower.APP, config))
        out.print(f"  {cell['flower_round_s']:.2f} s a round")
    if programs is not None:
        out.print(f"{cell['sites']} sites, {cell['mb']:g} MB: NVFLARE ...")
        with peer_nvflare.NvflareDeployment(cell["sites"], programs) as nvflare:
            cell |= _of_peer("nvflare", nvflare.run(options.rounds + 1, parameters))
        out.print(f"  {cell['nvflare_round_s']:.2f} s a round")


def _of_peer(name: str, run: Any) -> dict[str, Any]:
    return {
        f"{name}_round_s": statistics.median(run.rounds_s[1:] or run.rounds_s),
        f"{name}_rss": sum(run.aggregator_rss.values()),
        f"{name}_rss_by_part": run.aggregator_rss,
    }


COLUMNS = (
    "#sites",
    "#MB",
    "#ours s",
    "#CPU s",
    "#RSS / model",
    "#Flower s",
    "#RSS / model",
    "#times ours",
    "#NVFLARE s",
    "#RSS / model",
    "#times ours",
)


def _row(cell: dict[str, Any]) -> tuple[str, ...]:
    model = 4 * parameters_of(cell["mb"])
    ours_s = cell.get("ours_round_s")
    row = [str(cell["sites"]), f"{cell['mb']:g}"]
    if ours_s is None:
        row += ["-"] * 3
    else:
        row += [f"{ours_s:.3f}", f"{cell['ours_cpu_s']:.3f}", f"{cell['ours_rss'] / model:.1f}"]
    for name in ("flower", "nvflare"):
        peer_s = cell.get(f"{name}_round_s")
        if peer_s is None:
            row += ["-"] * 3
        else:
            times = "-" if ours_s is None else f"{peer_s / ours_s:.1f}"
            row += [f"{peer_s:.2f}", f"{cell[f'{name}_rss'] / model:.1f}", times]
    return tuple(row)


if __name__ == "__main__":
    main()
