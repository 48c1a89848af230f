"""Say what the daemon and its trainer tell each other besides arrays: `tidegate.confine.frames`.

Of a frame from the trainer nothing but the fields below is read.

A conversation: the daemon sends a `Start`, the trainer answers with a report or a failure. Then,
request by request: an action with a number of chunks; a ``chunk`` frame for each slot that the
daemon has filled, at most two ahead; a ``chunk`` frame back for each slot that is done, in the same
order; ``done`` at the end, with whatever else the request's kind answers. A request and an answer
may say that so many bytes of the shared ``blob`` belong to them. Instead of any answer the trainer
may send a failure, its last frame: of the kind ``app``, ``memory``, ``ranks`` or ``sandbox``.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from privacy.errors import PeerError, Reason
from tidegate.confine.frames import MAX_DETAIL, encode
from tidegate.confine.sandbox import SandboxReport
from tidegate.schema import FLOAT, Column, Schema

TASK = "task"
FLOWER = "flower"
LEAKAGE = "leakage"
CALL = "call"
GRADIENTS = "gradients"
STEPS = "steps"
OPTIMISE = "optimise"
METRICS = "metrics"
MEASURE = "measure"
DESCRIBE = "describe"
ATTACK = "attack"


@dataclass(frozen=True)
class Start:
    """Daemon to trainer, first: all it needs to confine itself and load the app.

    Attributes:
        app_folder: The unpacked app; empty to only enter the sandbox and report.
        task_file: The task's path inside it.
        schema: The columns of a row, in order.
        spec_digest: Digest of the vector spec, hex.
        model_length: D.
        metrics_length: M.
        physical_batch: P.
        serves: The one action that will be asked for: ``GRADIENTS``, ``STEPS``, ``OPTIMISE``,
            ``METRICS``, or ``MEASURE`` to be told the vector spec of ``model()`` (that of this
            request is then not looked at).
        own_optimiser: Whether local steps use the task's ``optimizer``.
        seed: Seeds torch before ``model()``.
        threads: Threads torch computes with.
        device: ``auto`` or a torch device.
        memory_mib: Memory limit.
        hidden: The site's folders.
        required: Whether a missing protection ends the process before the app is loaded.
        base_models: Name and folder of each base model that the task is given.
        readable: Folders and files that the site's configuration shows to the app.
        work: Which server answers: `TASK`, or another one's name.
        settings: What that server is told, JSON.
        blob_bytes: Room for bytes beside the arrays.
        precision: ``float32``, ``bf16`` or ``auto``.
        processes: Ranks that share a batch.
        parallel: ``ddp`` or ``fsdp``.
    """

    app_folder: str
    task_file: str
    schema: Schema
    spec_digest: str
    model_length: int
    metrics_length: int
    physical_batch: int
    serves: str
    own_optimiser: bool
    seed: int
    threads: int
    device: str
    memory_mib: int
    hidden: tuple[str, ...]
    required: bool
    base_models: tuple[tuple[str, str], ...] = ()
    readable: tuple[str, ...] = ()
    work: str = TASK
    settings: dict[str, Any] = field(default_factory=dict)
    blob_bytes: int = 0
    precision: str = "float32"
    processes: int = 1
    parallel: str = "ddp"


def encode_start(start: Start) -> bytes:
    """Write the first frame."""
    return encode({**asdict(start), "schema": [_packed(c) for c in start.schema.columns]})


def decode_start(raw: bytes) -> Start:
    """Read the first frame, which the daemon wrote: it is trusted."""
    fields: dict[str, Any] = json.loads(raw)
    fields["schema"] = Schema(tuple(_unpacked(*packed) for packed in fields["schema"]))
    fields["base_models"] = tuple((name, folder) for name, folder in fields["base_models"])
    fields["hidden"] = tuple(fields["hidden"])
    fields["readable"] = tuple(fields["readable"])
    return Start(**fields)


def report_frame(report: SandboxReport, device: str, architecture: str = "") -> dict[str, Any]:
    """Say that the app is loaded, with its task's architecture, or the sandbox entered."""
    return {"ready": asdict(report), "device": device, "architecture": architecture}


def read_report(frame: dict[str, Any]) -> SandboxReport:
    """Read a report.

    Raises:
        PeerError: MALFORMED: it is none.
    """
    ready = frame.get("ready")
    if not isinstance(ready, dict) or not isinstance(ready.get("notes"), list):
        raise PeerError(Reason.MALFORMED, "the trainer sent something else than its report")
    notes = tuple(str(note)[:MAX_DETAIL] for note in ready["notes"][:16])
    return SandboxReport(
        network=ready.get("network") is True,
        filesystem=ready.get("filesystem") is True,
        process=ready.get("process") is True,
        memory=ready.get("memory") is True,
        syscalls=ready.get("syscalls") is True,
        notes=notes,
    )


def _packed(column: Column) -> list[object]:
    """Write a column in few bytes: most jobs have plain ones, and some have thousands."""
    packed: list[object] = [column.name]
    if column != Column(column.name):
        packed += [column.dtype, column.shape]
    if column.is_bounded:
        packed += [column.low, column.high]
    return packed


def _unpacked(
    name: str,
    dtype: str = FLOAT,
    shape: tuple[int, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> Column:
    return Column(name, dtype, tuple(shape), low, high)
