"""Measure what a request to a trainer costs beyond the training itself, in milliseconds.

    python -m benchmarks.trainer_overhead [--requests 300] [--json FILE]

The model has 10,029 parameters, a request one batch of 64 rows. The same engine is called in this
process on the same rows for the training itself; the difference is sockets, copies, the sandboxed
process' loop and its Flower message. Medians of requests taken in turns.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from aggregator.cli.output import table_of
from benchmarks import figures
from edge_node.tasks.local_steps import LocalSteps
from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.task import Task, load_task, spec_of
from edge_node.trainer.conversation import Rows
from edge_node.trainer.frames import GRADIENTS, STEPS
from edge_node.trainer.trainer import Trainer, TrainerConfinement, TrainerJob, TrainerLimits
from tidegate.schema import Column, Schema

APP = Path(__file__).parent / "apps" / "mlp10k"
ROWS = 64
RATE = 0.01
WARM_UP = 20
COLUMNS = ("label", *(f"x{index:02d}" for index in range(32)))


@dataclass(frozen=True)
class Figure:
    """What was measured of one kind of request.

    Attributes:
        request: Its kind.
        round_trip_ms: From the call to its result, median.
        training_ms: The engine alone, median.
        overhead_ms: The difference.
        least_overhead_ms: The same of the quickest round trip and training: what other work on the
            machine has no part in.
    """

    request: str
    round_trip_ms: float
    training_ms: float
    overhead_ms: float
    least_overhead_ms: float


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure what a request to a trainer costs.")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    if options.requests < 20:
        parser.error("--requests must be at least 20")
    return options


async def measure(serves: str, requests: int) -> Figure:
    """Measure one kind of request, in turns with the engine alone."""
    task = load_task(APP, "task.py", 0)
    schema = Schema(tuple(Column(name) for name in COLUMNS))
    job = TrainerJob(
        APP, "task.py", schema, spec_of(task.model), physical_batch=ROWS, serves=serves
    )
    trainer = Trainer(job, TrainerLimits(device="cpu"), TrainerConfinement())
    rows_NW = np.random.default_rng(0).random((ROWS, schema.width), dtype=np.float32)
    model_D = np.random.default_rng(1).normal(0, 0.05, job.spec.length).astype(np.float32)
    alone = _engine(task, job, model_D, rows_NW)

    async def request() -> None:
        if serves == STEPS:
            await trainer.local_steps(model_D, [rows_NW], RATE)
        else:
            await trainer.record_gradients(model_D, rows_NW, lambda *_: None)

    await trainer.start()
    trips_ms, trainings_ms = [], []
    try:
        for _ in range(requests + WARM_UP):
            begin_s = time.perf_counter()
            await request()
            middle_s = time.perf_counter()
            alone()
            trips_ms.append(1e3 * (middle_s - begin_s))
            trainings_ms.append(1e3 * (time.perf_counter() - middle_s))
    finally:
        await trainer.stop()
    return _figure(serves, trips_ms[WARM_UP:], trainings_ms[WARM_UP:])


def _engine(task: Task, job: TrainerJob, model_D: Rows, rows_NW: Rows) -> Callable[[], None]:
    """Make the training of one request, without a process around it."""
    model, rows = torch.from_numpy(model_D), torch.from_numpy(rows_NW)
    if job.serves == STEPS:
        steps, trained = LocalSteps(task, job.spec, job.schema), torch.empty_like(model)

        def take_step() -> None:
            steps.set_model(model)
            steps.step(rows, RATE)
            steps.read_model(trained)

        return take_step
    gradients = RecordGradients(task, job.spec, job.schema, 0)
    out = torch.empty(ROWS, job.spec.length), torch.empty(ROWS, 0)

    def take_gradients() -> None:
        gradients.set_model(model)
        gradients(rows, *out)

    return take_gradients


def _figure(serves: str, trips_ms: list[float], trainings_ms: list[float]) -> Figure:
    trip_ms, training_ms = statistics.median(trips_ms), statistics.median(trainings_ms)
    least_ms = min(trips_ms) - min(trainings_ms)
    return Figure(serves, trip_ms, training_ms, trip_ms - training_ms, least_ms)


def main(arguments: list[str] | None = None) -> None:
    """Measure and show."""
    options = parse(arguments)
    torch.set_num_threads(1)
    found = [asyncio.run(measure(kind, options.requests)) for kind in (STEPS, GRADIENTS)]
    names = ("request", "round trip ms", "training ms", "overhead ms", "least overhead ms")
    lines = [(f.request, *(f"{x:.2f}" for x in list(asdict(f).values())[1:])) for f in found]
    figures.console().print(table_of("A request to a trainer", names, lines))
    result = {"machine": figures.machine(), "figures": [asdict(f) for f in found]}
    figures.write_json(options.json, result)


if __name__ == "__main__":
    main()
