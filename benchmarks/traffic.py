"""Measure bytes on the wire and accuracy at several compressions, beside Flower's fp32 FedAvg.

    python -m benchmarks.traffic [--quick] [--ours-only] [--targets 10x,42x,100x,400x] [--json FILE]

Ours are real processes: an aggregator, and an edge node with its trainer for each of five sites,
mTLS, SA-1's masks, no noise (the peer has none either). Each site runs in a network namespace of
its own; counted are the bytes of its interface both ways: payload, protocol, TLS, TCP, IP and
Ethernet headers. The sites hold real digits, split by Dirichlet 0.3; every site takes 8 steps of
plain SGD a round, and the outer optimiser is FedAvg's mean on both sides, weighing sites alike.

The peer is Flower 1.42's engine in the same namespaces (SuperLink, SuperNodes, no TLS), training
the same model; it takes 8 s and more a round, so it runs a few rounds for its bytes, and its model
must then be that of FedAvg in this process (``fedavg``), which gives the accuracy of all rounds.
``up_saved`` and ``down_saved`` are shares of the peer's bytes, of a round past the first ones;
``whole_..`` hold the first model and all else that a job begins with. With ``--ours-only`` they are
shares of the model's fp32 payload alone. ``points_lost`` is fp32's accuracy minus ours, in points
of a hundred, the mean over seeds; ``points_lost_by_seed`` shows the spread.

``--quick`` takes one seed and few rounds: its bytes are those of the long run, and its points say
little, for a compressed run catches up over about 200 rounds.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from aggregator.cli.output import table_of
from benchmarks import digits_data, fedavg, figures, traffic_sides
from benchmarks.digits_data import Digits
from benchmarks.fedavg import Training
from benchmarks.own_network import NetworkedConsortium, OwnNetwork, own_network
from benchmarks.scratch import scratch_folder
from benchmarks.traffic_sides import Setting, Spent

TARGETS = ("10x", "42x", "100x", "400x")
SETTINGS = {
    "large": Setting(784, (1536, 1024), Training(steps=8, batch=32, rate=0.05)),
    "small": Setting(64, (96, 64), Training(steps=8, batch=32, rate=0.1)),
}
SITES = 5
QUICK_ROUNDS = 25
SAME_MODEL = 1e-4
"""Largest relative difference at which Flower's model and ours of the same rounds are the same."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=SETTINGS, default="large", help="11.2 MB, or 52 kB")
    parser.add_argument("--targets", default=",".join(TARGETS), help="'dense' is one too")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of each job")
    parser.add_argument("--seeds", type=int, default=3, help="how many runs, seeds 0, 1, ...")
    parser.add_argument("--peer-rounds", type=int, default=3, help="rounds of Flower's engine")
    parser.add_argument("--quick", action="store_true", help="one seed, few rounds")
    parser.add_argument("--ours-only", action="store_true", help="leave Flower out")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    options.targets = options.targets.split(",")
    if options.quick:
        options.rounds, options.seeds = min(options.rounds, QUICK_ROUNDS), 1
    if options.rounds < 5 or options.seeds < 1 or options.peer_rounds < 1:
        parser.error("needs 5 rounds, one seed and one round of the peer at least")
    return options


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    out = figures.console()
    try:
        with scratch_folder() as scratch, own_network() as network:
            result = Benchmark(options, scratch, network, out).run()
    except KeyboardInterrupt:
        sys.exit(130)
    _show(options, result, out)
    figures.write_json(options.json, result)


@dataclass
class Benchmark:
    """One run of the script: data and baselines first, then every job."""

    options: argparse.Namespace
    scratch: Path
    network: OwnNetwork
    out: Console
    setting: Setting = field(init=False)
    app: Path = field(init=False)
    task: Any = field(init=False)

    def run(self) -> dict[str, Any]:
        """Run all of it; gives the figures."""
        options = self.options
        self.setting = SETTINGS[options.model]
        self.app = self.setting.app(self.scratch / "app")
        self.task = traffic_sides.task_of(self.app)
        read = digits_data.mnist if options.model == "large" else digits_data.small
        pixels, digits = read()
        seeds = range(options.seeds)
        data = {seed: digits_data.split(pixels, digits, SITES, seed) for seed in seeds}
        spent, fp32 = self._jobs(data)
        payload = 4.0 * sum(array.size for array in next(iter(spent.values()))[0].weights.values())
        base = Spent(payload, payload, payload, payload, {})
        result: dict[str, Any] = {"model_bytes": payload, "accuracy_fp32": fp32}
        if not options.ours_only:
            base, result["peer_differs"] = self._flower(data[0])
        result |= {"base_up": base.up, "base_down": base.down}
        for target, runs in spent.items():
            ours = [
                fedavg.accuracy(self.task, run.weights, data[seed].test)
                for seed, run in zip(seeds, runs, strict=True)
            ]
            result[target] = compared(runs, base, ours, fp32)
        return result | {"rounds": options.rounds, "sites": SITES, "seeds": options.seeds}

    def _jobs(self, data: dict[int, Digits]) -> tuple[dict[str, list[Spent]], list[float]]:
        options = self.options
        jobs = {
            (target, seed): self.setting.submission(self.app, target, options.rounds, seed, SITES)
            for target in options.targets
            for seed in data
        }
        self.out.print("fp32 FedAvg in this process ...")
        fp32 = []
        for seed, digits in data.items():
            first = traffic_sides.first_weights(jobs[options.targets[0], seed])
            last = fedavg.fedavg(
                self.task, first, digits.sites, self.setting.training, options.rounds, seed
            )
            fp32.append(fedavg.accuracy(self.task, last, digits.test))
        spent: dict[str, list[Spent]] = {target: [] for target in options.targets}
        app = [next(iter(jobs.values())).app_sha256]
        consortium = NetworkedConsortium(
            self.scratch / "consortium", self.out.print, network=self.network
        )
        with consortium:
            names = traffic_sides.start(consortium, self.scratch / "sites", data, app)
            for (target, seed), submission in jobs.items():
                self.out.print(f"{target}, seed {seed}: {options.rounds} rounds ...")
                run = traffic_sides.run_ours(consortium, submission, names, self.scratch)
                spent[target].append(run)
        return spent, fp32

    def _flower(self, digits: Digits) -> tuple[Spent, float]:
        """Run Flower on seed 0; gives its bytes, and how far its model is from that of FedAvg."""
        rounds = self.options.peer_rounds
        self.out.print(f"Flower: {rounds} rounds ...")
        submission = self.setting.submission(self.app, traffic_sides.DENSE, rounds, 0, SITES)
        first = traffic_sides.first_weights(submission)
        spent = traffic_sides.run_flower(
            self.network, self.setting, digits, first, rounds, self.scratch
        )
        training = self.setting.training
        expected = fedavg.fedavg(self.task, first, digits.sites, training, rounds, seed=0)
        differs = traffic_sides.difference(expected, spent.weights)
        if differs > SAME_MODEL:
            raise RuntimeError(f"Flower's model differs from FedAvg's by {differs:.1e}")
        return spent, differs


def compared(
    runs: list[Spent], base: Spent, ours: list[float], fp32: list[float]
) -> dict[str, Any]:
    """Put a target's runs beside the baseline: means over seeds, shares saved, points lost."""
    mean = traffic_sides.mean
    lost = [100 * (theirs - own) for theirs, own in zip(fp32, ours, strict=True)]
    up, down = mean([run.up for run in runs]), mean([run.down for run in runs])
    return {
        "up": up,
        "down": down,
        "up_saved": 1 - up / base.up,
        "down_saved": 1 - down / base.down,
        "whole_up_saved": 1 - mean([run.whole_up for run in runs]) / base.whole_up,
        "whole_down_saved": 1 - mean([run.whole_down for run in runs]) / base.whole_down,
        "accuracy": mean(ours),
        "points_lost": mean(lost),
        "points_lost_by_seed": lost,
    }


def _show(options: argparse.Namespace, result: dict[str, Any], out: Console) -> None:
    columns = ("target", "#up", "#down", "#up saved", "#down saved", "#accuracy", "#points lost")
    peer = "fp32 payload" if options.ours_only else "Flower, fp32"
    accuracy = f"{100 * traffic_sides.mean(result['accuracy_fp32']):.2f}"
    rows = [(peer, _kb(result["base_up"]), _kb(result["base_down"]), "-", "-", accuracy, "-")]
    for target in options.targets:
        found = result[target]
        saved = (f"{100 * found[key]:.2f} %" for key in ("up_saved", "down_saved"))
        points = f"{found['points_lost']:+.2f}"
        quality = f"{100 * found['accuracy']:.2f}"
        rows.append((target, _kb(found["up"]), _kb(found["down"]), *saved, quality, points))
    title = f"{SITES} sites, {result['model_bytes'] / 1e6:.2f} MB, a site and round"
    out.print(table_of(title, columns, rows))
    out.print(
        f"{options.seeds} seeds of {options.rounds} rounds; bytes of the sites' interfaces;"
        f" load {figures.machine()['load_1min']}"
    )


def _kb(count: float) -> str:
    return f"{count / 1000:,.1f} kB"


if __name__ == "__main__":
    main()
