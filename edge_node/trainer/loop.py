"""Load the app inside the sandbox and answer the daemon's requests (trainer side).

Every library is imported before the system call filter is put in place, the app after it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.clientapp import ClientApp

from edge_node.flower.app import FlowerCalls
from edge_node.flower.messages import new_context, new_message
from edge_node.tasks.architecture import architecture_of
from edge_node.tasks.gradient_engines import load_libraries
from edge_node.tasks.local_steps import LocalSteps, OptimiserSteps
from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.record_metrics import RecordMetrics, build_metrics_app
from edge_node.tasks.task import Task, TaskError, load_task, spec_of
from edge_node.tasks.task_app import (
    Steps,
    build_gradients_app,
    build_optimiser_app,
    build_steps_app,
)
from edge_node.trainer.batch_port import BatchPort, DaemonGoneError
from edge_node.trainer.device import device_name, pick_device
from edge_node.trainer.frames import (
    FLOWER,
    GRADIENTS,
    LEAKAGE,
    MEASURE,
    METRICS,
    STEPS,
    Start,
    report_frame,
)
from edge_node.trainer.ranks import Rank
from edge_node.trainer.shared_memory import SharedLayout
from privacy.spec import VectorSpec
from tidegate.confine.frames import failure_frame
from tidegate.confine.sandbox import Sandbox

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def serve(start: Start, rank: Rank, memory_fd: int, sandbox: Sandbox) -> None:
    """Load the app and answer requests until the daemon hangs up.

    Args:
        start: What the daemon asked for.
        rank: This process among the trainer's, and its conversation with the daemon.
        memory_fd: The shared memory; closed here.
        sandbox: Entered, not yet sealed.

    Raises:
        TaskError: The app breaks a rule.
        Exception: Whatever the app raises.
    """
    layout = SharedLayout(
        start.model_length,
        start.physical_batch,
        start.schema.width,
        start.metrics_length,
        start.blob_bytes,
    )
    port = BatchPort(rank.connection, layout.attach(memory_fd))
    os.close(memory_fd)
    device = _open_device(start, rank)
    if rank.count > 1 and start.serves == STEPS:
        from edge_node.trainer import distributed  # noqa: PLC0415 - heavy, and few sites need it

        distributed.join(rank, device, loopback=sandbox.loopback)
    if start.work == LEAKAGE:
        import edge_node.leakage.attacks  # noqa: F401, PLC0415 - nobody else needs them

    if start.serves == GRADIENTS or start.work == LEAKAGE:
        load_libraries()
    report = sandbox.seal()
    if start.required and report.missing:
        lacking = f"missing: {', '.join(report.missing)}"
        port.send(failure_frame("sandbox", "; ".join([lacking, *report.notes])))
        return
    answer, architecture = _load_work(start, port, Path(sandbox.app_folder), device, rank)
    port.send(report_frame(report, device_name(device), architecture))
    try:
        _answer_requests(answer, port)
    except DaemonGoneError:
        return


def _open_device(start: Start, rank: Rank) -> torch.device:
    torch.set_num_threads(start.threads)
    device = pick_device(start.device, rank.index)
    if device.type != "cpu":
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.zeros(1, device=device)  # the driver comes up before the filter is in place
    return device


def _load_work(
    start: Start, port: BatchPort, folder: Path, device: torch.device, rank: Rank
) -> tuple[Answer, str]:
    """Load what serves the job: a function from a request's fields to those of its answer.

    With it comes the architecture of the task that is trained; empty for other work.
    """
    if start.work == FLOWER:
        return FlowerCalls(start, port, folder).answer, ""
    if start.serves == MEASURE:
        content = spec_of(_load_task(start, folder).model).to_bytes()
        return lambda _request: port.put_blob(content), ""
    if start.work == LEAKAGE:
        from edge_node.leakage.attacks import LeakageAttacks  # noqa: PLC0415 - imported above

        return LeakageAttacks(start, port, folder, device).answer, ""
    task, context = _load_task(start, folder), new_context()
    architecture = architecture_of(task.model)  # before anything of ours is hung onto it
    app = _build_app(start, port, task, device, rank)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        app(new_message(request.pop("action"), request), context)
        return {}

    return answer, architecture


def _build_app(
    start: Start, port: BatchPort, task: Task, device: torch.device, rank: Rank
) -> ClientApp:
    spec = _check_spec(task, start)
    task.model.to(device)
    if start.serves == STEPS:
        return build_steps_app(port, _make_steps(start, task, spec, rank))
    if start.serves == METRICS:
        metrics = RecordMetrics(task, spec, start.schema, start.metrics_length)
        return build_metrics_app(port, metrics)
    if start.serves != GRADIENTS:
        return build_optimiser_app(port, OptimiserSteps(task, spec))
    engine = RecordGradients(task, spec, start.schema, start.metrics_length)
    first, second = (
        (torch.from_numpy(slot.gradients_PD), torch.from_numpy(slot.metrics_PM))
        for slot in port.arrays.slots
    )
    if rank.count == 1:
        engine.check(first, second)
        return build_gradients_app(port, engine)
    from edge_node.trainer import distributed  # noqa: PLC0415

    shared = distributed.SharedGradients(engine, rank)
    shared.check_independence(first, second)
    return build_gradients_app(port, shared)


def _load_task(start: Start, folder: Path) -> Task:
    base_models = {name: Path(path) for name, path in start.base_models}
    return load_task(folder, start.task_file, start.seed, base_models)


def _make_steps(start: Start, task: Task, spec: VectorSpec, rank: Rank) -> Steps:
    if rank.count > 1:
        from edge_node.trainer import distributed  # noqa: PLC0415

        return distributed.SharedSteps(task, spec, rank, start)
    return LocalSteps(
        task,
        spec,
        start.schema,
        start.metrics_length,
        precision=start.precision,
        own_optimiser=start.own_optimiser,
    )


def _check_spec(task: Task, start: Start) -> VectorSpec:
    spec = spec_of(task.model)
    if spec.digest.hex() != start.spec_digest:
        names = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in spec.tensors[:5])
        raise TaskError(
            f"model() gives {len(spec.tensors)} trainable tensors of {spec.length} numbers "
            f"({names}), not those of the job with {start.model_length} numbers: the app and the "
            "job's vector spec do not belong together"
        )
    return spec


def _answer_requests(answer: Answer, port: BatchPort) -> None:
    while True:
        port.send({"done": True, **answer(port.receive())})
