"""Run a job's app in a confined process and hand it work, one request at a time.

The daemon samples, clips, sums and adds noise; the process evaluates the app's functions on the
rows it is handed, and nothing else (privacy.md, "Who is trusted with the clip").

Shapes: D = coordinates of the model vector, P = rows of a physical batch, C = declared columns,
M = metrics a record, N = records of a request, n = rows of one batch of local steps.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_node.shared_memory import SLOTS, SharedLayout
from edge_node.trainer_child import TrainerChild, TrainerFailure
from edge_node.trainer_frames import GRADIENTS, STEPS, Start, read_report
from privacy.errors import UsageError
from privacy.spec import TensorSpec, VectorSpec
from tidegate.confine.sandbox import SandboxMode, SandboxReport

__all__ = [
    "Trainer",
    "TrainerConfinement",
    "TrainerFailure",
    "TrainerJob",
    "TrainerLimits",
    "probe",
]

Rows = NDArray[np.float32]
_PROBE_TIMEOUT_S = 20.0
# Batches are padded to a multiple of this. CPU matrix kernels treat the rows beyond the last full
# tile apart, and give them other last bits: with 5, 50 or 63 rows a record's gradient was seen to
# change with its slot, with multiples of 4 never.
_TILE_ROWS = 16
OnChunk = Callable[[Rows, Rows, int], None]


@dataclass(frozen=True)
class TrainerJob:
    """What a trainer runs.

    Attributes:
        app_folder: The unpacked app, as its digest was checked.
        task_file: The task's path inside the app folder.
        columns: The columns of a batch, in the order of the rows handed over.
        spec: The trainable parameters of the task's model, in the order of the vector: those of
            ``named_parameters()`` that require a gradient.
        metrics_length: M, the length of a record's metric vector; 0 calls no ``metrics``.
        physical_batch: P, rows evaluated at once; local steps take at most as many a batch.
        per_record: Whether it serves `Trainer.record_gradients`, or `Trainer.local_steps`.
        seed: Seeds torch before ``model()`` is called, for parts that are not in the vector.
    """

    app_folder: Path
    task_file: str
    columns: tuple[str, ...]
    spec: VectorSpec
    metrics_length: int = 0
    physical_batch: int = 64
    per_record: bool = True
    seed: int = 0


@dataclass(frozen=True)
class TrainerLimits:
    """What a trainer may use.

    Attributes:
        start_timeout_s: Until the app is loaded and checked.
        request_timeout_s: Until a whole request is answered.
        memory_mib: Memory the process may allocate, libraries (about 200 MiB) included, the arrays
            shared with it not counted.
        threads: Threads torch computes with.
        device: ``auto``, ``cpu``, or a torch device such as ``cuda:1`` or ``npu:0``.
    """

    start_timeout_s: float = 120.0
    request_timeout_s: float = 30.0
    memory_mib: int = 4096
    threads: int = 1
    device: str = "auto"


@dataclass(frozen=True)
class TrainerConfinement:
    """How a trainer is kept apart.

    Attributes:
        mode: Whether a missing protection is refused.
        hidden: Folders it must not see even where they lie inside what it sees: the site's own.
        log_path: Where what the app prints goes (it may hold data: keep it local); None drops it.
    """

    mode: SandboxMode = SandboxMode.BEST_AVAILABLE
    hidden: tuple[Path, ...] = ()
    log_path: Path | None = None


class Trainer:
    """One job's trainer process, restarted by the next request after it failed."""

    def __init__(
        self, job: TrainerJob, limits: TrainerLimits, confinement: TrainerConfinement
    ) -> None:
        self._job = job
        self._limits = limits
        self._confinement = confinement
        self._lock = asyncio.Lock()
        self._child: TrainerChild | None = None
        self._report: SandboxReport | None = None
        self._device = ""
        shape = (job.physical_batch, job.spec.length)
        self._gradients_PD: Rows = np.empty(shape if job.per_record else (0, 0), dtype=np.float32)
        self._metrics_PM: Rows = np.empty((job.physical_batch, job.metrics_length), np.float32)

    @property
    def device(self) -> str:
        """Return what the app computes on, as torch names it; empty before the first start."""
        return self._device

    async def start(self) -> SandboxReport:
        """Start the process, load the app and check that records do not influence each other.

        Does nothing when it runs already. Requests start it when need be.

        Returns:
            Which protections are in force.

        Raises:
            TrainerFailure: The app does not load, does not fit the job, or breaks a limit.
            UsageError: The mode is ``required`` and this machine lacks a protection.
        """
        async with self._lock:
            return await self._start()

    async def record_gradients(self, model_D: Rows, rows_NC: Rows, on_chunk: OnChunk) -> None:
        """Evaluate each record's gradient and metrics at a published model version.

        Args:
            model_D: The model version, shape (D,).
            rows_NC: The sampled records, shape (N, C), N may be 0; NaN where a value is missing.
            on_chunk: Called with (gradients_PD, metrics_PM, n_valid) for each physical batch, in
                the order of the rows, in the caller's thread. Rows from n_valid on are padding.
                The arrays are private copies (the process cannot change them under the clip) and
                are reused after the call returns.

        Raises:
            TrainerFailure: The app raised, exceeded a limit or died; the process is gone.
            UsageError: An array does not fit the job.
        """
        self._check_request(model_D, (rows_NC,), per_record=True)
        batch = self._job.physical_batch
        n_chunks = -(-len(rows_NC) // batch)
        chunks = [rows_NC[k * batch : (k + 1) * batch] for k in range(n_chunks)]
        async with self._request() as child:
            np.copyto(child.arrays.model_D, model_D)
            await child.send({"action": GRADIENTS, "chunks": n_chunks})
            for k in range(min(SLOTS, n_chunks)):
                await _fill(child, k, chunks[k])
            for k, chunk in enumerate(chunks):
                await _expect(child, {"chunk": k % SLOTS})
                slot = child.arrays.slots[k % SLOTS]
                # Copied before anything looks at it: norms checked on memory that the app can
                # still write to would be worth nothing.
                self._gradients_PD[: len(chunk)] = slot.gradients_PD[: len(chunk)]
                self._metrics_PM[: len(chunk)] = slot.metrics_PM[: len(chunk)]
                if k + SLOTS < n_chunks:
                    await _fill(child, k + SLOTS, chunks[k + SLOTS])
                on_chunk(self._gradients_PD, self._metrics_PM, len(chunk))
            await _expect(child, {"done": True})

    async def local_steps(
        self, model_D: Rows, batches: Sequence[Rows], learning_rate: float
    ) -> Rows:
        """Take one plain gradient step a batch on the mean loss, mode ``none`` only.

        Args:
            model_D: The model version to start from, shape (D,).
            batches: Each of shape (n, C), 1 <= n <= physical_batch.
            learning_rate: Finite and positive.

        Returns:
            The new parameters, a copy, shape (D,). Not checked to be finite: the clip does.

        Raises:
            TrainerFailure: The app raised, exceeded a limit or died; the process is gone.
            UsageError: An argument does not fit the job.
        """
        self._check_request(model_D, batches, per_record=False)
        if not (math.isfinite(learning_rate) and learning_rate > 0):
            raise UsageError(f"a learning rate must be finite and positive, not {learning_rate}")
        if any(not 1 <= len(rows) <= self._job.physical_batch for rows in batches):
            raise UsageError(f"a batch must have 1 to {self._job.physical_batch} rows")
        async with self._request() as child:
            np.copyto(child.arrays.model_D, model_D)
            frame = {"action": STEPS, "chunks": len(batches), "learning_rate": float(learning_rate)}
            await child.send(frame)
            for k, rows_nC in enumerate(batches):
                if k >= SLOTS:
                    await _expect(child, {"chunk": k % SLOTS})
                await _fill(child, k, rows_nC)
            for k in range(max(0, len(batches) - SLOTS), len(batches)):
                await _expect(child, {"chunk": k % SLOTS})
            await _expect(child, {"done": True})
            return child.arrays.model_D.copy()

    async def stop(self) -> None:
        """End the process and all it started; nothing happens when none runs.

        A request under way, which only another task can have made, is waited for: cancel it first.
        """
        async with self._lock:
            await self._end()

    @asynccontextmanager
    async def _request(self) -> AsyncIterator[TrainerChild]:
        """Hold the process for one request."""
        async with self._lock:
            await self._start()
            async with self._ended_on_error(self._limits.request_timeout_s):
                yield self._running()

    @asynccontextmanager
    async def _ended_on_error(self, limit_s: float) -> AsyncIterator[None]:
        """End the process when anything goes wrong or takes too long.

        Nobody knows what it would say next; a new one costs about two seconds.
        """
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            await self._end()
            message = f"the app was ended after {limit_s:g} s without an answer"
            raise TrainerFailure(message, message) from error
        except BaseException:
            await self._end()
            raise

    async def _start(self) -> SandboxReport:
        if self._child is not None and not self._child.alive:
            await self._end()
        if self._report is None:
            async with self._ended_on_error(self._limits.start_timeout_s):
                first = _first_frame(self._job, self._limits, self._confinement)
                self._child = TrainerChild(first, self._layout(), self._confinement.log_path)
                frame = await self._child.receive()
                self._device = str(frame.get("device", ""))[:40]
                self._report = read_report(frame)
        return self._report

    def _running(self) -> TrainerChild:
        if self._child is None:
            raise UsageError("no trainer process runs; this is a mistake in edge_node.trainer")
        return self._child

    async def _end(self) -> None:
        child, self._child, self._report = self._child, None, None
        if child is not None:
            await child.end()

    def _layout(self) -> SharedLayout:
        job = self._job
        n_columns = len(job.columns)
        return SharedLayout(job.spec.length, _padded_rows(job), n_columns, job.metrics_length)

    def _check_request(self, model_D: Rows, tables: Sequence[Rows], *, per_record: bool) -> None:
        if self._job.per_record != per_record:
            raise UsageError("this trainer was made for the other kind of request (per_record)")
        self._job.spec.check(model_D)
        for rows_NC in tables:
            if rows_NC.dtype != np.float32 or rows_NC.shape[1:] != (len(self._job.columns),):
                raise UsageError(
                    f"rows must be float32 of shape (N, {len(self._job.columns)}), "
                    f"not {rows_NC.dtype} of shape {rows_NC.shape}"
                )


async def probe() -> SandboxReport:
    """Enter the sandbox in a process of its own and say what holds on this machine.

    Raises:
        TrainerFailure: The process did not come up.
    """
    spec = VectorSpec((TensorSpec("none", ()),))
    job = TrainerJob(Path(), "", (), spec, physical_batch=1)
    start = _first_frame(job, TrainerLimits(), TrainerConfinement())
    child = TrainerChild(replace(start, app_folder=""), SharedLayout(1, 1, 0, 0), None)
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            return read_report(await child.receive())
    except TimeoutError as error:
        message = f"the sandbox was not entered within {_PROBE_TIMEOUT_S:g} s"
        raise TrainerFailure(message, message) from error
    finally:
        await child.end()


def _first_frame(job: TrainerJob, limits: TrainerLimits, confinement: TrainerConfinement) -> Start:
    return Start(
        app_folder=str(job.app_folder.resolve()),
        task_file=job.task_file,
        columns=job.columns,
        spec_digest=job.spec.digest.hex(),
        model_length=job.spec.length,
        metrics_length=job.metrics_length,
        physical_batch=_padded_rows(job),
        per_record=job.per_record,
        seed=job.seed,
        threads=limits.threads,
        device=limits.device,
        memory_mib=limits.memory_mib,
        hidden=tuple(str(path.resolve()) for path in confinement.hidden),
        required=confinement.mode is SandboxMode.REQUIRED,
    )


def _padded_rows(job: TrainerJob) -> int:
    return -(-job.physical_batch // _TILE_ROWS) * _TILE_ROWS


async def _fill(child: TrainerChild, number: int, rows_NC: Rows) -> None:
    """Put rows into a slot, pad them with zeros, and say so."""
    slot = number % SLOTS
    target_PC = child.arrays.slots[slot].rows_PC
    target_PC[: len(rows_NC)] = rows_NC
    target_PC[len(rows_NC) :] = 0.0
    await child.send({"chunk": slot, "rows": len(rows_NC)})


async def _expect(child: TrainerChild, expected: dict[str, object]) -> None:
    frame = await child.receive()
    if frame != expected:
        detail = f"it said {frame!r} where {expected!r} was due"
        raise TrainerFailure("the app broke the trainer's protocol", detail)
