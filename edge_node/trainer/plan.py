"""Say what a trainer runs, what it may use and how it is kept apart, and write its first frame."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_node.tasks.base_models import LocalBaseModel
from edge_node.trainer.frames import GRADIENTS, STEPS, TASK, Start
from edge_node.trainer.health import HealthRules
from edge_node.trainer.shared_memory import SharedLayout
from privacy.spec import VectorSpec
from tidegate.confine.sandbox import SandboxMode
from tidegate.schema import Schema

# Batches are padded to a multiple of this. CPU matrix kernels treat the rows beyond the last full
# tile apart, and give them other last bits: with 5, 50 or 63 rows a record's gradient was seen to
# change with its slot, with multiples of 4 never.
_TILE_ROWS = 16
_SHARED = (GRADIENTS, STEPS)
"""What several processes can do together."""


@dataclass(frozen=True)
class TrainerJob:
    """What a trainer runs.

    Attributes:
        app_folder: The unpacked app, as its digest was checked.
        task_file: The task's path inside the app folder; empty for other work.
        schema: The columns of a row, as a batch shows them to the task.
        spec: The trainable parameters of the task's model, in the order of the vector: those of
            ``named_parameters()`` that require a gradient.
        metrics_length: M, the length of a record's metric vector; 0 calls no ``metrics``.
        physical_batch: P, rows evaluated at once; local steps take at most as many a batch.
        serves: The one action that will be asked for: ``frames.GRADIENTS``, ``STEPS``,
            ``OPTIMISE``, or one of another server's (see `work`).
        own_optimiser: Whether local steps use the task's ``optimizer``.
        seed: Seeds torch before ``model()`` is called, for parts that are not in the vector.
        base_models: Weights that the site holds and ``model(base_models)`` is given; their files
            are hashed before each start.
        work: Which of the trainer's servers answers: ``frames.TASK`` or another one's name.
        settings: What that server is told once at its start, JSON; with the rest of the first
            frame at most ``tidegate.confine.frames.MAX_FRAME_BYTES``.
        blob_bytes: Room for bytes beside the arrays, either way, for requests with a blob.
        readable: Folders and files of the site's that the app may read besides base models.
        architecture: Digest that the task's model must have, hex; empty where any will do.
    """

    app_folder: Path
    task_file: str
    schema: Schema
    spec: VectorSpec
    metrics_length: int = 0
    physical_batch: int = 64
    serves: str = GRADIENTS
    own_optimiser: bool = False
    seed: int = 0
    base_models: tuple[LocalBaseModel, ...] = ()
    work: str = TASK
    settings: Mapping[str, Any] = field(default_factory=dict)
    blob_bytes: int = 0
    readable: tuple[Path, ...] = ()
    architecture: str = ""


@dataclass(frozen=True)
class TrainerLimits:
    """What a trainer may use.

    Attributes:
        start_timeout_s: Until the app is loaded and checked.
        request_timeout_s: Until a whole request is answered.
        memory_mib: Memory each of its processes may allocate, libraries (about 200 MiB) included,
            the arrays shared with it not counted.
        threads: Threads torch computes with, in each process.
        device: ``auto``, ``cpu``, or a device as ``edge_node.trainer.device`` names them.
        precision: ``float32``, ``bf16`` or ``auto``: see ``edge_node.trainer.device``.
        processes: Ranks that share a batch; see ``edge_node.trainer.distributed``.
        parallel: ``ddp`` or ``fsdp``: how ranks hold the model.
        health: When it is replaced, and when it is given up.
    """

    start_timeout_s: float = 120.0
    request_timeout_s: float = 30.0
    memory_mib: int = 4096
    threads: int = 1
    device: str = "auto"
    precision: str = "float32"
    processes: int = 1
    parallel: str = "ddp"
    health: HealthRules = field(default_factory=HealthRules)

    def ranks(self, job: TrainerJob) -> int:
        """Give how many processes a job's trainer has; work that cannot be shared out has one."""
        return self.processes if job.work == TASK and job.serves in _SHARED else 1

    def padded_batch(self, job: TrainerJob) -> int:
        """Give the rows that a slot has room for: for each rank as many."""
        tile = _TILE_ROWS * self.ranks(job)
        return -(-job.physical_batch // tile) * tile

    def layout(self, job: TrainerJob) -> SharedLayout:
        """Give the memory that a job's trainer shares with the daemon."""
        rows = self.padded_batch(job)
        width = job.schema.width
        return SharedLayout(job.spec.length, rows, width, job.metrics_length, job.blob_bytes)


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


def first_frame(job: TrainerJob, limits: TrainerLimits, confinement: TrainerConfinement) -> Start:
    """Write what a trainer process is told first."""
    return Start(
        app_folder=str(job.app_folder.resolve()),
        task_file=job.task_file,
        schema=job.schema,
        spec_digest=job.spec.digest.hex(),
        model_length=job.spec.length,
        metrics_length=job.metrics_length,
        physical_batch=limits.padded_batch(job),
        serves=job.serves,
        own_optimiser=job.own_optimiser,
        base_models=tuple((model.name, str(model.path.resolve())) for model in job.base_models),
        seed=job.seed,
        threads=limits.threads,
        device=limits.device,
        memory_mib=limits.memory_mib,
        hidden=tuple(str(path.resolve()) for path in confinement.hidden),
        required=confinement.mode is SandboxMode.REQUIRED,
        readable=tuple(
            str(path.resolve())
            for path in (*job.readable, *(model.path for model in job.base_models))
        ),
        work=job.work,
        settings=dict(job.settings),
        blob_bytes=job.blob_bytes,
        precision=limits.precision,
        processes=limits.ranks(job),
        parallel=limits.parallel,
    )
