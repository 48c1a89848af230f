"""Measure how busy five sites' accelerators are over long, narrow lines, beside Flower's FedAvg.

    python -m benchmarks.wan [--mbit 10,100,1000] [--mb 100] [--target 100x] [--ours-only]

What is real: the processes of both sides, their protocols, TLS and TCP (ours), the masks and the
encoding, a line for each site (``delayed_link``: its rate both ways, 50 ms there and back, a
router's queue) between network namespaces, and a congestion control that the table names. What is
emulated: the accelerators. A round of local training is a wait of ``--compute-s``; by default 7.9
s, what 100 steps of 65,536 tokens take a model of 25 million parameters (100 MB) at 125 TFLOP/s.

The busy fraction is that wait over the time of a round, past the first: ours between commits in the
aggregator's journal, Flower's between its rounds' ends. All five sites and the aggregator share
this machine's cores, so that what they compute counts as idle time of the accelerators; the table
shows the CPU seconds of a round. The peer is fp32 FedAvg on Flower 1.42, which masks nothing.
"""

import argparse
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from aggregator.cli.output import table_of
from aggregator.cli.submission import Submission, prepare
from benchmarks import figures, peer_flower
from benchmarks.bench_site import BenchSite
from benchmarks.job_run import run_job
from benchmarks.job_text import with_values
from benchmarks.own_network import NetworkedConsortium, OwnNetwork, Wire, own_network
from benchmarks.process_cost import cpu_s
from benchmarks.round_clock import commit_times, steady_pace
from benchmarks.round_grid import CHAINS, parameters_of
from benchmarks.rounds import min_survivors
from benchmarks.scratch import scratch_folder
from benchmarks.traffic_sides import DENSE

APP = Path(__file__).parent / "apps" / "timed"
SITES = 5
COLLUDERS = 1
RECORDS = 64
ROUND_TRIP_MS = 50.0
COMPUTE_S = 7.9


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mbit", default="10,100,1000", help="Mbit/s of a site's line, each way")
    parser.add_argument("--mb", type=float, choices=CHAINS, default=100.0, help="model size")
    parser.add_argument("--target", default="100x", help="compression of ours; or 'dense'")
    parser.add_argument("--compute-s", type=float, default=COMPUTE_S, help="training of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each run, 3 at least")
    parser.add_argument("--peer-rounds", type=int, default=3, help="rounds of Flower's engine")
    parser.add_argument("--ours-only", action="store_true", help="leave Flower out")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    try:
        options.mbit = [float(text) for text in options.mbit.split(",")]
    except ValueError:
        parser.error("--mbit is numbers with commas between")
    if min(options.mbit) <= 0 or options.compute_s <= 0:
        parser.error("lines and training must take time")
    if options.rounds < 3 or options.peer_rounds < 2:
        parser.error("needs 3 rounds of ours and 2 of the peer at least")
    return options


def busy_fraction(compute_s: float, round_s: float) -> float:
    """Give the share of a round in which an accelerator trains."""
    return min(1.0, compute_s / round_s)


def main() -> None:
    options = parse()
    out = figures.console()
    found: dict[str, dict[str, Any]] = {}
    try:
        with scratch_folder() as scratch, own_network() as network:
            submission = _submission(options, scratch / "app")
            for mbit in options.mbit:
                name = f"{mbit:g}"
                names = _lines(network, mbit)
                out.print(f"{name} Mbit/s: ours ...")
                found[name] = _ours(options, network, submission, names, scratch / name, out)
                if not options.ours_only:
                    out.print(f"{name} Mbit/s: Flower ...")
                    found[name] |= _flower(options, network, names)
                network.remove_sites()
            congestion_control = network.congestion_control
    except KeyboardInterrupt:
        sys.exit(130)
    title = f"{SITES} sites, {options.mb:g} MB, {ROUND_TRIP_MS:g} ms, {congestion_control}"
    out.print(table_of(title, COLUMNS, [_row(*item) for item in found.items()]))
    out.print(
        f"ours: {options.target}; a round of training is a wait of {options.compute_s:g} s;"
        f" load {figures.machine()['load_1min']}"
    )
    facts = {"compute_s": options.compute_s, "mb": options.mb, "target": options.target}
    result = {**found, **facts, "congestion_control": congestion_control}
    figures.write_json(options.json, result)


def _submission(options: argparse.Namespace, folder: Path) -> Submission:
    width, layers = CHAINS[options.mb]
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    task = folder / "task.py"
    task.write_bytes(with_values(task.read_text(), {"WIDTH": width, "LAYERS": layers}))
    values = {"rounds": options.rounds, "target_sites": SITES}
    job = with_values((folder / "job.toml").read_text(), values)
    if options.target != DENSE:
        job += f'\n[compression]\ntarget = "{options.target}"\n'.encode()
    return prepare(folder, job)


def _lines(network: OwnNetwork, mbit: float) -> list[str]:
    names = [f"site-{index}" for index in range(SITES)]
    for name in names:
        network.add_site(name, Wire(mbit, ROUND_TRIP_MS))
    return names


def _ours(
    options: argparse.Namespace,
    network: OwnNetwork,
    submission: Submission,
    names: list[str],
    folder: Path,
    out: Console,
) -> dict[str, Any]:
    consortium = NetworkedConsortium(folder / "consortium", out.print, network=network)
    with consortium:
        plans = [_site(folder / "sites" / name, options, submission) for name in names]
        consortium.start_aggregator("wan")
        consortium.enrol(plans)
        consortium.seal(COLLUDERS, min_survivors(SITES))
        consortium.start_sites(plans)
        # A site's program is behind nsenter, which becomes it: the ids are those of the programs.
        pids = {name: process.pid for name, process in consortium.processes.items()}
        costs: list[tuple[int, float]] = []
        job = run_job(
            consortium, submission, lambda seen: costs.append((seen, sum(cpu_s(pids).values())))
        )
        times_s = commit_times(folder / "consortium" / "aggregator" / "aggregator.sqlite")
    round_s = steady_pace(times_s, 1).median_ms / 1000
    (first, before), (last, after) = costs[0], costs[-1]
    return {
        "ours_round_s": round_s,
        "ours_busy": busy_fraction(options.compute_s, round_s),
        "ours_cpu_s": (after - before) / max(1, last - first),
        "ours_bytes_up": statistics.fmean(site.bytes_up for site in job.sites) / job.round,
        "ours_bytes_down": statistics.fmean(site.bytes_down for site in job.sites) / job.round,
    }


def _site(folder: Path, options: argparse.Namespace, submission: Submission) -> BenchSite:
    folder.mkdir(parents=True, mode=0o700)
    signal_N = np.linspace(-1, 1, RECORDS, dtype=np.float32)
    waits_N = np.full(RECORDS, options.compute_s, np.float32)
    np.savez(folder / "timed.npz", compute_s=waits_N, signal=signal_N)
    return BenchSite.of(folder, ["timed"], [submission.app_sha256])


def _flower(options: argparse.Namespace, network: OwnNetwork, names: list[str]) -> dict[str, Any]:
    config = {
        "rounds": options.peer_rounds,
        "parameters": parameters_of(options.mb),
        "compute_s": options.compute_s,
    }
    with peer_flower.FlowerDeployment(len(names), network) as flower:
        run = flower.run(peer_flower.APP, config)
    round_s = statistics.median(run.rounds_s[1:])
    return {"flower_round_s": round_s, "flower_busy": busy_fraction(options.compute_s, round_s)}


COLUMNS = (
    "#Mbit/s",
    "#ours: s a round",
    "#busy",
    "#CPU s",
    "#MB up",
    "#MB down",
    "#Flower: s a round",
    "#busy",
)


def _row(mbit: str, cell: dict[str, Any]) -> tuple[str, ...]:
    row = (
        mbit,
        f"{cell['ours_round_s']:.2f}",
        f"{100 * cell['ours_busy']:.1f} %",
        f"{cell['ours_cpu_s']:.1f}",
        f"{cell['ours_bytes_up'] / 1e6:.2f}",
        f"{cell['ours_bytes_down'] / 1e6:.2f}",
    )
    if "flower_round_s" not in cell:
        return (*row, "-", "-")
    return (*row, f"{cell['flower_round_s']:.1f}", f"{100 * cell['flower_busy']:.1f} %")


if __name__ == "__main__":
    main()
