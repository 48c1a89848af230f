"""Run a job's app in a confined process and hand it work, one request at a time.

Shapes: D = coordinates of the model vector, P = rows of a physical batch, C = declared columns,
M = metrics a record, N = records of a request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_node.sandbox import SandboxMode, SandboxReport
from privacy.errors import PeerError, Reason
from privacy.spec import VectorSpec

Rows = NDArray[np.float32]
OnChunk = Callable[[Rows, Rows, int], None]


@dataclass(frozen=True)
class TrainerJob:
    """What a trainer runs.

    Attributes:
        app_folder: The unpacked app, as its digest was checked.
        task_file: The task's path inside the app folder.
        columns: The columns of a batch, in the order of the rows handed over.
        spec: The trainable parameters of the task's model, in the order of the vector.
        metrics_length: M, the length of a record's metric vector; 0 calls no ``metrics``.
        physical_batch: P, rows evaluated at once; local steps take at most as many a batch.
        seed: Seeds torch before ``model()`` is called, for parts that are not in the vector.
    """

    app_folder: Path
    task_file: str
    columns: tuple[str, ...]
    spec: VectorSpec
    metrics_length: int = 0
    physical_batch: int = 64
    seed: int = 0


@dataclass(frozen=True)
class TrainerLimits:
    """What a trainer may use.

    Attributes:
        start_timeout_s: Until the app is loaded and checked.
        request_timeout_s: Until a whole request is answered.
        memory_mib: Memory the process may allocate, the shared arrays not counted.
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
    hidden: tuple[Path, ...] = field(default=())
    log_path: Path | None = None


class TrainerFailure(PeerError):
    """The app raised, hung, or died.

    The message is one of a few fixed sentences and may go to the aggregator. ``detail`` says what
    the app raised and where; it may hold data, so it belongs in the site's local log only.
    """

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(Reason.TRAINER_FAILED, message)
        self.detail = detail


class Trainer:
    """One job's trainer process, restarted by the next request after it failed."""

    def __init__(
        self, job: TrainerJob, limits: TrainerLimits, confinement: TrainerConfinement
    ) -> None:
        self._job = job
        self._limits = limits
        self._confinement = confinement

    async def start(self) -> SandboxReport:
        """Start the process, load the app and check that records do not influence each other.

        Does nothing when it runs already. Requests start it when need be.

        Raises:
            TrainerFailure: The app does not load, does not fit the job, or breaks a limit.
            UsageError: The mode is ``required`` and this machine lacks a protection.
        """
        raise NotImplementedError

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
        """
        raise NotImplementedError

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
            TrainerFailure: As above.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """End the process and all it started; nothing happens when none runs."""
        raise NotImplementedError
