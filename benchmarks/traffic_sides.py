"""Both sides of the traffic benchmark: a real federation of ours, and Flower, on counted wires."""

import shutil
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.cli.submission import Submission, prepare
from benchmarks import fedavg, peer_flower
from benchmarks.bench_site import BenchSite
from benchmarks.digits_data import Digits
from benchmarks.fedavg import Training, Weights
from benchmarks.job_run import run_job, tensors_of
from benchmarks.job_text import with_values
from benchmarks.own_network import NetworkedConsortium, OwnNetwork, Traffic
from benchmarks.rounds import min_survivors
from privacy.spec import VectorSpec

APPS = Path(__file__).parent / "apps"
COLLUDERS = 1
DENSE = "dense"
"""The target of a job without ``[compression]``."""


@dataclass(frozen=True)
class Setting:
    """A model and how it is trained.

    Attributes:
        inputs: Pixels.
        hidden: Widths of the two hidden layers.
        training: Of every site, every round.
    """

    inputs: int
    hidden: tuple[int, int]
    training: Training

    def app(self, folder: Path) -> Path:
        """Make the app's folder with this model in it."""
        shutil.copytree(APPS / "digits", folder, ignore=shutil.ignore_patterns("__pycache__"))
        task = folder / "task.py"
        sizes = {"INPUTS": self.inputs, "FIRST": self.hidden[0], "SECOND": self.hidden[1]}
        task.write_bytes(with_values(task.read_text(), sizes))
        return folder

    def submission(self, app: Path, target: str, rounds: int, seed: int, sites: int) -> Submission:
        """Make the job of one run."""
        values: Mapping[str, Any] = {
            "rounds": rounds,
            "target_sites": sites,
            "seed": seed,
            "dataset": f'"seed-{seed}"',
            "shape": f"[{self.inputs}]",
            "steps": self.training.steps,
            "batch_size": self.training.batch,
            "physical_batch": self.training.batch,
            "learning_rate": self.training.rate,
        }
        job = with_values((app / "job.toml").read_text(), values)
        if target != DENSE:
            job += f'\n[compression]\ntarget = "{target}"\n'.encode()
        return prepare(app, job)


@dataclass(frozen=True)
class Spent:
    """Bytes of one site and round on the wire, each way, and what came of them.

    Attributes:
        up: Past the first rounds.
        down: Likewise.
        whole_up: Of the whole job over its rounds: the first model and the offer too.
        whole_down: Likewise.
        weights: The last model.
    """

    up: float
    down: float
    whole_up: float
    whole_down: float
    weights: Weights = field(repr=False)


def first_weights(submission: Submission) -> Weights:
    """Give a job's first model by tensor name."""
    spec = VectorSpec.from_bytes(submission.vector_spec)
    return dict(spec.unflatten(np.frombuffer(submission.model, "<f4")))


@dataclass
class Counter:
    """Read the sites' counters as rounds go by.

    Attributes:
        read: Gives the bytes so far, summed over sites.
        sites: How many.
    """

    read: Callable[[], Traffic]
    sites: int
    marks: list[tuple[int, Traffic]] = field(default_factory=list)

    def mark(self, round_number: int) -> None:
        """Take the counters after a round."""
        self.marks.append((round_number, self.read()))

    def per_round(self) -> tuple[float, float, float, float]:
        """Give up and down of a site and round: between the inner marks, then over all of them.

        Raises:
            RuntimeError: There are not four marks of which the inner two are of different rounds.
        """
        inner = self.marks[1:-1]
        if len(inner) < 2 or inner[0][0] == inner[-1][0]:
            raise RuntimeError("too few rounds were seen: run more of them")
        found = []
        for first, last in ((inner[0], inner[-1]), (self.marks[0], self.marks[-1])):
            rounds = (last[0] - first[0]) * self.sites
            crossed = last[1] - first[1]
            found += [crossed.up / rounds, crossed.down / rounds]
        return found[0], found[1], found[2], found[3]


def run_ours(
    consortium: NetworkedConsortium, submission: Submission, names: list[str], scratch: Path
) -> Spent:
    """Run one job in a federation that is up."""
    network = consortium.network
    if network is None:
        raise RuntimeError("bytes are counted in a network of its own only")
    counter = Counter(lambda: total(network, names), len(names))
    counter.mark(0)
    job = run_job(consortium, submission, counter.mark)
    counter.mark(job.round)
    return Spent(*counter.per_round(), tensors_of(consortium, job.job_id, scratch))


def start(
    consortium: NetworkedConsortium, folder: Path, data: Mapping[int, Digits], apps: list[bytes]
) -> list[str]:
    """Start an aggregator and one real site for each shard; gives the sites' names.

    Args:
        consortium: Its network gets a namespace a site, unless it has them.
        folder: Of the sites.
        data: By seed; every seed's has as many sites.
        apps: Digests of what may run.
    """
    sites = len(next(iter(data.values())).sites)
    plans = []
    for index in range(sites):
        place = folder / f"site-{index}"
        place.mkdir(parents=True, mode=0o700)
        for seed, digits in data.items():
            np.savez(place / f"seed-{seed}.npz", **digits.sites[index])
        plans.append(BenchSite.of(place, [f"seed-{seed}" for seed in data], apps))
        if consortium.network is not None and not consortium.network.has(place.name):
            consortium.network.add_site(place.name)
    consortium.start_aggregator("traffic")
    consortium.enrol(plans)
    consortium.seal(COLLUDERS, min_survivors(sites))
    consortium.start_sites(plans)
    return [plan.site_id for plan in plans]


def run_flower(
    network: OwnNetwork, setting: Setting, digits: Digits, first: Weights, rounds: int, folder: Path
) -> Spent:
    """Run fp32 FedAvg on Flower's engine for some rounds; all its bytes are spread over them."""
    names = [f"site-{index}" for index in range(len(digits.sites))]
    app = _flower_app(setting, folder / "flower-app")
    np.savez(folder / "first.npz", **first)
    nodes = []
    for index, table in enumerate(digits.sites):
        shard = folder / f"flower-{index}.npz"
        np.savez(shard, **table)
        nodes.append(peer_flower.toml_pairs({"shard": str(shard), "site": index}))
    config = {
        "rounds": rounds,
        "seed": 0,
        "steps": setting.training.steps,
        "batch": setting.training.batch,
        "rate": setting.training.rate,
        "first": str(folder / "first.npz"),
        "last": str(folder / "last.npz"),
    }
    with peer_flower.FlowerDeployment(len(names), network, nodes) as flower:
        before = total(network, names)
        flower.run(app, config)
        crossed = total(network, names) - before
    with np.load(folder / "last.npz") as archive:
        weights = {name: archive[name] for name in archive.files}
    up, down = (count / rounds / len(names) for count in (crossed.up, crossed.down))
    return Spent(up, down, up, down, weights)


def difference(ours: Weights, theirs: Weights) -> float:
    """Give the largest difference between two models' parameters, over the largest parameter."""
    apart = max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)
    return apart / max(float(np.abs(array).max()) for array in ours.values())


def total(network: OwnNetwork, names: list[str]) -> Traffic:
    """Sum the counters of all sites."""
    counts = [network.traffic(name) for name in names]
    return Traffic(sum(count.up for count in counts), sum(count.down for count in counts))


def mean(values: list[float]) -> float:
    """Give the mean of a list; NaN of an empty one."""
    return statistics.fmean(values) if values else float("nan")


def _flower_app(setting: Setting, folder: Path) -> Path:
    shutil.copytree(APPS / "flower_digits", folder, ignore=shutil.ignore_patterns("__pycache__"))
    task = setting.app(folder.with_name("flower-task")) / "task.py"
    shutil.copy(task, folder / "digits" / "task.py")
    return folder


def task_of(app: Path) -> Any:
    """Import an app's task."""
    return fedavg.load_module(app / "task.py", f"benchmarks_task_{abs(hash(app))}")
