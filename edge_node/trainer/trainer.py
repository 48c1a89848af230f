"""Run a job's app in a confined process and hand it work, one request at a time.

The daemon samples, clips, sums and adds noise; the process evaluates the app's functions on the
rows it is handed, and nothing else (privacy.md, "Who is trusted with the clip"). The process stays
warm from request to request, and is replaced when it fails or leaks (``edge_node.trainer.health``).

Shapes: D = coordinates of the model vector, P = rows of a physical batch, C = declared columns,
M = metrics a record, N = records of a request, n = rows of one batch of local steps.
"""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_node import log
from edge_node.tasks.base_models import check_base_models
from edge_node.tasks.batches import padding_row
from edge_node.trainer.child import TrainerChild, TrainerFailure
from edge_node.trainer.conversation import Conversation, Reply, Rows
from edge_node.trainer.frames import GRADIENTS, OPTIMISE, STEPS, read_report
from edge_node.trainer.health import HealthRules, MemoryWatch, Restarts
from edge_node.trainer.plan import TrainerConfinement, TrainerJob, TrainerLimits, first_frame
from edge_node.trainer.shared_memory import SLOTS, SharedLayout
from edge_node.trainer.step_batches import Batches, take_steps
from edge_node.trainer.time_box import TimeBox
from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import TensorSpec, VectorSpec
from tidegate.confine.sandbox import SandboxReport
from tidegate.schema import Schema

__all__ = [
    "Conversation",
    "HealthRules",
    "Reply",
    "Trainer",
    "TrainerConfinement",
    "TrainerFailure",
    "TrainerJob",
    "TrainerLimits",
    "probe",
]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PROBE_TIMEOUT_S = 20.0
OnChunk = Callable[[Rows, Rows, int], None]


class Trainer:
    """One job's trainer process, restarted by the next request after it failed or was replaced."""

    def __init__(
        self, job: TrainerJob, limits: TrainerLimits, confinement: TrainerConfinement
    ) -> None:
        """Take what to run and how; no process is started yet."""
        self._job = job
        self._limits = limits
        self._confinement = confinement
        self._lock = asyncio.Lock()
        self._child: TrainerChild | None = None
        self._report: SandboxReport | None = None
        self._device = ""
        self._restarts = Restarts(limits.health)
        self._watch = self._new_watch()
        self._padding_W = padding_row(job.schema)
        shape = (job.physical_batch, job.spec.length)
        self._gradients_PD: Rows = np.empty(
            shape if job.serves == GRADIENTS else (0, 0), dtype=np.float32
        )
        self._metrics_PM: Rows = np.empty((job.physical_batch, job.metrics_length), np.float32)

    @property
    def device(self) -> str:
        """Return what the app computes on, as its process said; empty before the first start."""
        return self._device

    @property
    def process_id(self) -> int | None:
        """Return the id of the process in front of the app, its supervisor; None without one."""
        return None if self._child is None else self._child.process_id

    async def start(self) -> SandboxReport:
        """Start the process, load the app and check that records do not influence each other.

        Does nothing when it runs already. Requests start it when need be.

        Returns:
            Which protections are in force.

        Raises:
            TrainerFailure: The app does not load, does not fit the job, breaks a limit, or failed
                too often to be started again.
            UsageError: The mode is ``required`` and this machine lacks a protection.
        """
        async with self._lock:
            return await self._start()

    async def request(
        self, frame: dict[str, Any], model_D: Rows | None = None, blob: bytes = b""
    ) -> tuple[Reply, Rows]:
        """Make a request without batches and wait for its answer.

        Args:
            frame: ``action`` and whatever its server understands, JSON, at most
                ``tidegate.confine.frames.MAX_FRAME_BYTES`` as text.
            model_D: The model version that the request is about, shape (D,).
            blob: Further bytes, at most the job's ``blob_bytes``.

        Returns:
            The answer, and the vector that the trainer left where the model was, shape (D,), a
            copy. Both are the app's word: hostile, nothing checked but their size.

        Raises:
            TrainerFailure: The app raised, exceeded a limit or died; the process is gone.
            UsageError: An argument does not fit the job.
        """
        if model_D is not None:
            self._job.spec.check(model_D)
        async with self.conversation() as talk:
            await talk.begin(frame, model_D, blob)
            return await talk.end(), talk.arrays.model_D.copy()

    async def record_gradients(self, model_D: Rows, rows_NW: Rows, on_chunk: OnChunk) -> None:
        """Evaluate each record's gradient and metrics at a published model version.

        Args:
            model_D: The model version, shape (D,).
            rows_NW: The sampled records, shape (N, W), N may be 0; NaN where a value is missing.
            on_chunk: Called with (gradients_PD, metrics_PM, n_valid) for each physical batch, in
                the order of the rows, in the caller's thread. Rows from n_valid on are padding.
                The arrays are private copies (the process cannot change them under the clip) and
                are reused after the call returns.

        Raises:
            TrainerFailure: The app raised, exceeded a limit or died; the process is gone.
            UsageError: An array does not fit the job.
        """
        self._check_request(GRADIENTS, model_D)
        self._check_rows(rows_NW)
        batch = self._job.physical_batch
        n_chunks = -(-len(rows_NW) // batch)
        chunks = [rows_NW[k * batch : (k + 1) * batch] for k in range(n_chunks)]
        async with self.conversation() as talk:
            await talk.begin({"action": GRADIENTS, "chunks": n_chunks}, model_D)
            for k in range(min(SLOTS, n_chunks)):
                await talk.put(k, chunks[k])
            for k, chunk in enumerate(chunks):
                await talk.wait(k)
                slot = talk.arrays.slots[k % SLOTS]
                # Copied before anything looks at it: norms checked on memory that the app can
                # still write to would be worth nothing.
                self._gradients_PD[: len(chunk)] = slot.gradients_PD[: len(chunk)]
                self._metrics_PM[: len(chunk)] = slot.metrics_PM[: len(chunk)]
                if k + SLOTS < n_chunks:
                    await talk.put(k + SLOTS, chunks[k + SLOTS])
                on_chunk(self._gradients_PD, self._metrics_PM, len(chunk))
            await talk.end()

    async def local_steps(
        self, model_D: Rows, batches: Batches, learning_rate: float, box: TimeBox | None = None
    ) -> tuple[Rows, Rows]:
        """Take one gradient step a batch on the mean loss, modes ``none`` and ``site`` only.

        Args:
            model_D: The model version to start from, shape (D,).
            batches: Each of shape (n, W), 1 <= n <= physical_batch; iterated once.
            learning_rate: Of plain descent, finite and positive; not used with `own_optimiser`.
            box: Ends the steps before the batches do; None takes all of them.

        Returns:
            Copies of the new parameters, shape (D,), and of the metrics of each step that was
            taken, averaged over its records before the step, shape (K, M). Neither is checked to be
            finite: the clip does.

        Raises:
            TrainerFailure: The app raised, exceeded a limit or died; the process is gone.
            UsageError: An argument does not fit the job.
        """
        self._check_request(STEPS, model_D)
        if not (math.isfinite(learning_rate) and learning_rate > 0) and not self._job.own_optimiser:
            raise UsageError(f"a learning rate must be finite and positive, not {learning_rate}")
        frame = {"action": STEPS, "chunks": len(batches), "learning_rate": float(learning_rate)}
        async with self.conversation() as talk:
            await talk.begin(frame, model_D)
            checked, length = self._checked(batches), self._job.metrics_length
            metrics_KM = await take_steps(talk, checked, len(batches), length, box)
            await talk.end()
            return talk.arrays.model_D.copy(), metrics_KM

    async def optimise(self, model_D: Rows, gradient_D: Rows) -> Rows:
        """Take one step of the task's optimizer on a gradient that is private already.

        The optimizer is the app's code, so what it gives is private only if it never saw a record:
        a process that serves this is handed none.

        Args:
            model_D: Parameters to step from, shape (D,).
            gradient_D: The noised mean gradient, shape (D,).

        Returns:
            The new parameters, a copy, shape (D,), not checked to be finite.

        Raises:
            TrainerFailure: The app raised, exceeded a limit or died; the process and with it the
                optimizer's state is gone.
            UsageError: An argument does not fit the job.
        """
        self._check_request(OPTIMISE, model_D)
        self._job.spec.check(gradient_D)
        async with self.conversation() as talk:
            np.copyto(talk.arrays.slots[0].gradients_PD[0], gradient_D)
            await talk.begin({"action": OPTIMISE}, model_D)
            await talk.end()
            return talk.arrays.model_D.copy()

    async def stop(self) -> None:
        """End the process and all it started; nothing happens when none runs.

        A request under way, which only another task can have made, is waited for: cancel it first.
        """
        async with self._lock:
            await self._end()

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Conversation]:
        """Hold the process for one request of any kind, started if it does not run.

        The request has the limits' time in all. Whatever goes wrong inside ends the process, for
        nobody knows what it would say next; a new one costs about two seconds. It is also ended
        after the request, with a reason in the log, when it holds too much memory.

        Raises:
            TrainerFailure: The app raised, exceeded a limit or died; the process is gone.
        """
        async with self._lock:
            await self._start()
            async with self._ended_on_error(self._limits.request_timeout_s):
                yield Conversation(self._running(), self._padding_W)
            self._restarts.answered()
            await self._check_memory()

    @asynccontextmanager
    async def _ended_on_error(self, limit_s: float) -> AsyncIterator[None]:
        """End the process when anything goes wrong or takes too long; count the app's failures."""
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            await self._end()
            message = f"the app was ended after {limit_s:g} s without an answer"
            self._restarts.failed(time.monotonic(), message)
            raise TrainerFailure(message, message) from error
        except TrainerFailure as failure:
            await self._end()
            self._restarts.failed(time.monotonic(), failure.detail)
            raise
        except BaseException:
            await self._end()
            raise

    async def _start(self) -> SandboxReport:
        if self._child is not None and not self._child.alive:
            log.warning("trainer ended between requests", why=await self._child.end_words())
            await self._end()
        if self._report is None:
            await self._wait_to_restart()
            await asyncio.to_thread(check_base_models, self._job.base_models)
            async with self._ended_on_error(self._limits.start_timeout_s):
                first = first_frame(self._job, self._limits, self._confinement)
                self._child = TrainerChild(
                    first, self._limits.layout(self._job), self._confinement.log_path
                )
                self._watch = self._new_watch()
                frame = await self._child.receive()
                report = read_report(frame)
                _check_architecture(self._job.architecture, frame.get("architecture"))
                self._report = report
                self._device = str(frame.get("device", ""))[:40]
            log.info("trainer started", device=self._device)
        return self._report

    async def _wait_to_restart(self) -> None:
        """Put off the start after a failure, or refuse it after too many."""
        restarts = self._restarts
        if restarts.given_up:
            message = f"the app failed {restarts.failures} times in a row and is not started again"
            raise TrainerFailure(message, f"{message}; the last time: {restarts.last_reason}")
        wait_s = restarts.wait_s(time.monotonic())
        if restarts.failures:
            why = restarts.last_reason
            log.warning("trainer starts again", failures=restarts.failures, wait_s=wait_s, why=why)
        await asyncio.sleep(wait_s)

    async def _check_memory(self) -> None:
        """End a process that holds too much or ever more, for the next request to start anew."""
        used_mib = self._running().private_mib()
        fault = "" if used_mib is None else self._watch.fault(used_mib)
        if fault:
            log.warning("trainer replaced", why=fault)
            await self._end()

    def _new_watch(self) -> MemoryWatch:
        limits = self._limits
        return MemoryWatch(limits.health, limits.memory_mib * limits.ranks(self._job))

    def _running(self) -> TrainerChild:
        if self._child is None:
            raise UsageError("no trainer process runs; this is a mistake in edge_node")
        return self._child

    async def _end(self) -> None:
        child, self._child, self._report = self._child, None, None
        if child is not None:
            await child.end()

    def _checked(self, batches: Batches) -> Iterator[Rows]:
        """Give batches of local steps on, each looked at first."""
        for rows_nW in batches:
            self._check_rows(rows_nW)
            if not 1 <= len(rows_nW) <= self._job.physical_batch:
                raise UsageError(f"a batch must have 1 to {self._job.physical_batch} rows")
            yield rows_nW

    def _check_request(self, action: str, model_D: Rows) -> None:
        if self._job.serves != action:
            raise UsageError(f"this trainer serves requests for {self._job.serves}, not {action}")
        self._job.spec.check(model_D)

    def _check_rows(self, rows_NW: Rows) -> None:
        width = self._job.schema.width
        if rows_NW.dtype != np.float32 or rows_NW.shape[1:] != (width,):
            raise UsageError(
                f"rows must be float32 of shape (N, {width}), "
                f"not {rows_NW.dtype} of shape {rows_NW.shape}"
            )


def _check_architecture(named: str, found: object) -> None:
    """Refuse a model of another architecture than the job names.

    Raises:
        PeerError: WRONG_DIGEST; says both digests, as far as they are any.
    """
    if named and found != named:
        shown = found if isinstance(found, str) and _DIGEST.fullmatch(found) else "none"
        raise PeerError(
            Reason.WRONG_DIGEST,
            f"the app's model has the architecture sha256:{shown}, and the job names"
            f" sha256:{named}",
        )


async def probe() -> SandboxReport:
    """Enter the sandbox in a process of its own and say what holds on this machine.

    Raises:
        TrainerFailure: The process did not come up.
    """
    spec = VectorSpec((TensorSpec("none", ()),))
    job = TrainerJob(Path(), "", Schema(()), spec, physical_batch=1)
    start = first_frame(job, TrainerLimits(), TrainerConfinement())
    child = TrainerChild(replace(start, app_folder=""), SharedLayout(1, 1, 0, 0), None)
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            return read_report(await child.receive())
    except TimeoutError as error:
        message = f"the sandbox was not entered within {_PROBE_TIMEOUT_S:g} s"
        raise TrainerFailure(message, message) from error
    finally:
        await child.end()
