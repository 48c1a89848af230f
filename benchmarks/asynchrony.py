"""Measure how long sites of different speed take to a target accuracy, by kind of round.

    python -m benchmarks.asynchrony [--seconds 60] [--target 0.9] [--quick] [--json FILE]

Five sites as real processes (daemon and trainer each, an aggregator, mTLS, secure sums) read
handwritten digits of a non-IID split (Dirichlet 0.5 over labels). Their speeds lie 10x apart: a
step takes 10 to 100 ms more than its arithmetic, which the task waits for without using the
processor.
The named baseline is *synchronous* rounds, in which every site takes as many steps, so that all
wait for the slowest. *Time-boxed* rounds train for a fixed time and scale each delta by its steps.

Accuracy is that of the aggregator's newest model on the held-out fifth, read whenever a round is
pushed to watchers; time counts from submission. Utilisation is each site's share of compute time by
its own clock, the waited milliseconds of a step among it.
"""

import argparse
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load
from sklearn.datasets import load_digits
from torch import Tensor

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium, SitePlan
from aggregator.cli.output import table_of
from aggregator.cli.submission import Submission, prepare, requests_of
from aggregator.cli.utilisation import time_shares
from benchmarks import figures
from benchmarks.job_text import with_values
from benchmarks.scratch import scratch_folder
from tidegate.convert import job_status_from_wire
from tidegate.requests import JobStatus
from tidegate.v1 import operator_pb2, operator_pb2_grpc

APP = Path(__file__).parent / "apps" / "paced"
PAUSES_MS = (10.0, 18.0, 32.0, 56.0, 100.0)
ALPHA = 0.5
SYNCHRONOUS_STEPS = 10
BOX_S = 0.5
QUICK_S = 15.0
SYNCHRONOUS, TIME_BOXED = "synchronous", "time-boxed"
Table = dict[str, NDArray[Any]]


@dataclass
class Run:
    """What one job gave.

    Attributes:
        kind: Of its rounds.
        curve: (seconds since submission, accuracy) at each model that was seen.
        job: As it ended.
    """

    kind: str
    curve: list[tuple[float, float]] = field(default_factory=list)
    job: JobStatus | None = None

    def seconds_to(self, target: float) -> float | None:
        """Give when the accuracy first reached a target; None if never."""
        return next((at_s for at_s, accuracy in self.curve if accuracy >= target), None)

    @property
    def final(self) -> float:
        """Return the mean accuracy of the last models: one alone is noisy."""
        return statistics.fmean(accuracy for _, accuracy in self.curve[-5:])

    @property
    def compute_shares(self) -> list[float]:
        """Return each site's share of compute time, the fastest first."""
        shares = [time_shares(site) for site in self.job.sites] if self.job else []
        return [share[0] if share else 0.0 for share in shares]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of each kind")
    parser.add_argument("--target", type=float, default=0.9, help="accuracy to reach, 0 to 1")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s of each kind")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds = QUICK_S
    if options.seconds < 5 or not 0 < options.target < 1:
        parser.error("needs 5 seconds at least, and a target between 0 and 1")
    return options


def split_digits(seed: int) -> tuple[list[Table], Table]:
    """Split the digits into one skewed table a site and a test table; fixed by the seed."""
    digits = load_digits()
    source = np.random.default_rng(seed)
    order = source.permutation(len(digits.target))
    pixels, labels = (digits.data / 16)[order].astype(np.float32), digits.target[order]
    held = len(order) // 5
    test = {"pixels": pixels[:held], "digit": labels[:held]}
    owner = np.empty(len(order) - held, dtype=np.int64)
    for label in range(10):
        (mine,) = np.nonzero(labels[held:] == label)
        shares = source.dirichlet(np.full(len(PAUSES_MS), ALPHA))
        owner[mine] = source.choice(len(PAUSES_MS), size=len(mine), p=shares)
    return [
        {
            "pixels": pixels[held:][owner == site],
            "digit": labels[held:][owner == site],
            "pause_ms": np.full(int((owner == site).sum()), pause_ms, np.float32),
        }
        for site, pause_ms in enumerate(PAUSES_MS)
    ], test


def job_toml(kind: str, seconds: float) -> bytes:
    """Give the job file of a kind of rounds, with about as many rounds as fit into the time."""
    text = (APP / "job.toml").read_text()
    if kind == TIME_BOXED:
        return with_values(text, {"rounds": max(5, round(seconds / (BOX_S + 0.1)))})
    text = re.sub(r"(?m)^time_box_s = .*\n", "", text)
    round_s = SYNCHRONOUS_STEPS * (max(PAUSES_MS) / 1000 + 0.005) + 0.1
    return with_values(
        text,
        {
            "rounds": max(5, round(seconds / round_s)),
            "steps": SYNCHRONOUS_STEPS,
            "server_learning_rate": 1.0,
        },
    )


def accuracy_of(tensors: Mapping[str, NDArray[np.float32]], test: Table) -> float:
    """Rate a released model on the test table."""
    pixels = torch.from_numpy(test["pixels"])
    weights = {name: torch.from_numpy(values) for name, values in tensors.items()}

    def layer(number: int, inputs: Tensor) -> Tensor:
        name = f"layers.{number}"
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return torch.nn.functional.linear(inputs, weight, bias)

    read = layer(2, layer(0, pixels).relu()).argmax(dim=1).numpy()
    return float((read == test["digit"]).mean())


def _site(scratch: Path, index: int, table: Table, submission: Submission) -> SitePlan:
    folder = scratch / "sites" / f"site-{index}"
    folder.mkdir(parents=True, mode=0o700)
    np.savez(folder / "shard.npz", **table)
    app, data = submission.app_sha256, submission.job.dataset
    return SitePlan(folder.name, folder, data, app, 1.0, 1e-5, 16, submission.job.privacy.mode)


def _run(
    api: operator_pb2_grpc.OperatorServiceStub, kind: str, submission: Submission, test: Table
) -> Run:
    """Run a job to its end and rate the newest model at each push."""
    run = Run(kind)
    began_s = time.monotonic()
    job_id = api.SubmitJob(requests_of(submission)).job_id
    seen = 0
    for update in api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id)):
        run.job = job_status_from_wire(update.job)
        if run.job.round > seen:
            seen, at_s = run.job.round, time.monotonic() - began_s
            chunks = api.ExportModel(operator_pb2.ExportModelRequest(job_id=job_id))
            model = load(b"".join(chunk.data for chunk in chunks))
            run.curve.append((at_s, accuracy_of(model, test)))
    if run.job is None or run.job.state != "finished":
        raise RuntimeError(f"the {kind} job did not finish: {run.job}")
    return run


def measure(options: argparse.Namespace) -> list[Run]:
    """Run each kind of rounds on the same sites, one after the other."""
    tables, test = split_digits(options.seed)
    kinds = {
        kind: prepare(APP, job_toml(kind, options.seconds)) for kind in (SYNCHRONOUS, TIME_BOXED)
    }
    with scratch_folder() as scratch, Consortium(scratch / "c", lambda _: None) as consortium:
        sites = [
            _site(scratch, index, table, kinds[TIME_BOXED]) for index, table in enumerate(tables)
        ]
        consortium.start_aggregator("asynchrony-benchmark")
        consortium.enrol(sites)
        for site in sites:
            policy = site.folder / "policy.toml"
            policy.write_text("allow_no_dp = true\n" + policy.read_text())
        consortium.seal(1, 4)
        consortium.start_sites(sites)
        with operator_api(consortium.operator()) as api:
            return [_run(api, kind, submission, test) for kind, submission in kinds.items()]


def figures_of(run: Run, target: float) -> dict[str, Any]:
    """Give a run's figures by name."""
    return {
        "kind": run.kind,
        "rounds": run.job.round if run.job else 0,
        "seconds": run.curve[-1][0],
        "seconds_to_target": run.seconds_to(target),
        "accuracy": run.final,
        "compute_shares": run.compute_shares,
        "curve": run.curve,
    }


def main() -> None:
    """Measure both kinds and show them."""
    options = parse()
    torch.set_num_threads(1)
    out = figures.console()
    found = [figures_of(run, options.target) for run in measure(options)]
    columns = (
        "rounds",
        "#number",
        "#seconds",
        f"#s to {options.target:.0%}",
        "#final accuracy",
        "#compute, mean",
        "#compute, fastest",
    )
    rows = [
        (
            entry["kind"],
            str(entry["rounds"]),
            f"{entry['seconds']:.1f}",
            "-" if entry["seconds_to_target"] is None else f"{entry['seconds_to_target']:.1f}",
            f"{entry['accuracy']:.3f}",
            f"{statistics.fmean(entry['compute_shares']):.0%}",
            f"{entry['compute_shares'][0]:.0%}",
        )
        for entry in found
    ]
    title = f"five sites, a step takes {min(PAUSES_MS):g} to {max(PAUSES_MS):g} ms"
    out.print(table_of(title, columns, rows))
    gap = found[1]["accuracy"] - found[0]["accuracy"]
    out.print(f"time-boxed against synchronous: {100 * gap:+.1f} points of accuracy at the end")
    figures.write_json(
        options.json, {"target": options.target, "seed": options.seed, "runs": found}
    )


if __name__ == "__main__":
    main()
