"""Sum a task's metrics over a site's records at one published model version.

As in D-REC, the app only evaluates rows in its confined process; sampling, clip, sum, rounding and
noise are the daemon's. Beside its metrics each record counts itself, in the same noised vector, so
that the sum says over how many records it is. The sampled rows are handed over block by block,
filled up to a number that does not tell how many the secret coins chose.

Shapes: D = coordinates of the model, M = metrics of a record, N = rows of a block.
"""

import secrets
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_node.job_state import encoding_of
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.row_draw import rows_a_step
from edge_node.tasks.batches import padding_row
from edge_node.trainer.frames import METRICS
from edge_node.trainer.shared_memory import SLOTS
from edge_node.trainer.trainer import Trainer
from privacy.cell_sum import CellSum
from privacy.noise import NoisedUpdate
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator
from privacy.sampling import poisson_sample
from tidegate.confine.sandbox import SandboxReport

_SEED_BYTES = 32
_BLOCK_ROWS = 1 << 15

Rows = NDArray[np.float32]


class EvaluationSums:
    """One sum of record metrics; see ``contract.LocalRound``."""

    def __init__(self, job: JobAtSite, trainer: Trainer, physical_batch: int) -> None:
        """Take the job, the confined process that evaluates it, and how many rows it takes."""
        self.job = job
        self.trainer = trainer
        self._batch = physical_batch
        self._padding_W = padding_row(job.schema)

    async def start(self) -> SandboxReport:
        """Start the trainer."""
        return await self.trainer.start()

    async def stop(self) -> None:
        """End the trainer."""
        await self.trainer.stop()

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Evaluate the sampled records, all of them at a sampling rate of 1.

        Raises:
            TrainerFailure: The app raised, hung or died.
            UsageError: The data set holds more records than the job's ``max_records``.
        """
        plan, _ = encoding_of(self.job.plan, request.version)
        dataset = self.job.dataset
        coins = secrets.token_bytes(_SEED_BYTES)
        indices = poisson_sample(len(dataset), plan.sampling_rate, coins)
        n_rows = max(rows_a_step(len(dataset), plan.sampling_rate), len(indices))
        total = _sum_for(plan)
        for begin in range(0, n_rows, _BLOCK_ROWS):
            rows_NW, real_N = self._block(indices[begin : begin + _BLOCK_ROWS], n_rows - begin)
            total.add(await self._evaluate(request.model_D, rows_NW), real_N)
        return total.finish()

    def _block(self, indices: NDArray[np.int64], rows_left: int) -> tuple[Rows, NDArray[np.bool_]]:
        """Copy sampled rows and put padding after them, as many as a block has or are left."""
        schema = self.job.schema
        count = min(_BLOCK_ROWS, rows_left)
        rows_NW = np.empty((count, schema.width), dtype=np.float32)
        rows_NW[: len(indices)] = self.job.dataset.take_rows(indices, schema)
        rows_NW[len(indices) :] = self._padding_W
        return rows_NW, np.arange(count) < len(indices)

    async def _evaluate(self, model_D: Rows, rows_NW: Rows) -> Rows:
        """Have the metrics of rows evaluated, in order: shape (N, M), private copies."""
        metrics_NM = np.empty((len(rows_NW), self.job.job_file.metrics_length), dtype=np.float32)
        chunks = [
            slice(begin, begin + self._batch) for begin in range(0, len(rows_NW), self._batch)
        ]
        async with self.trainer.conversation() as talk:
            await talk.begin({"action": METRICS, "chunks": len(chunks)}, model_D)
            for number, rows in enumerate(chunks[:SLOTS]):
                await talk.put(number, rows_NW[rows])
            for number, rows in enumerate(chunks):
                await talk.wait(number)
                # Copied before anything looks at it: the app can still write to what it shares.
                shared_PM = talk.arrays.slots[number % SLOTS].metrics_PM
                metrics_NM[rows] = shared_PM[: len(rows_NW[rows])]
                if number + SLOTS < len(chunks):
                    await talk.put(number + SLOTS, rows_NW[chunks[number + SLOTS]])
            await talk.end()
        return metrics_NM


class _Sum(Protocol):
    """What adds metrics up, by the plan's mode."""

    def add(self, metrics_NM: Rows, real_N: NDArray[np.bool_]) -> None:
        """Add the rows that are records."""
        ...

    def finish(self) -> NoisedUpdate:
        """Close the sum."""
        ...


class _ClippedSum:
    """Mode record-distributed: each record's [1, metrics] is clipped, rounded and noised."""

    def __init__(self, plan: EncodingPlan) -> None:
        self._total = RecordAccumulator(plan)

    def add(self, metrics_NM: Rows, real_N: NDArray[np.bool_]) -> None:
        self._total.add(_counted(metrics_NM), np.empty((len(metrics_NM), 0), np.float32), real_N)

    def finish(self) -> NoisedUpdate:
        return self._total.finish(secrets.token_bytes(_SEED_BYTES))


class _PlainSum:
    """Mode none: summed as they are; a record that is not finite counts nowhere."""

    def __init__(self, plan: EncodingPlan) -> None:
        self._length = plan.gradient_length
        self._total = CellSum(plan, (1,) * plan.gradient_length)

    def add(self, metrics_NM: Rows, real_N: NDArray[np.bool_]) -> None:
        cells = np.zeros((len(metrics_NM), self._length), dtype=np.int64)
        self._total.add(cells, _counted(metrics_NM), real_N)

    def finish(self) -> NoisedUpdate:
        return self._total.finish(None)


def _sum_for(plan: EncodingPlan) -> _Sum:
    return _PlainSum(plan) if plan.mode is Mode.NONE else _ClippedSum(plan)


def _counted(metrics_NM: Rows) -> Rows:
    """Put a 1 before each record's metrics (``tidegate.evaluation_layout``)."""
    return np.concatenate([np.ones((len(metrics_NM), 1), np.float32), metrics_NM], axis=1)
