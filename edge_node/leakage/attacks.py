"""Attack a task inside the sandbox (trainer side): the attacks take gradients through its code.

Two requests. ``describe`` answers with the bytes of the model's vector spec, from which the daemon
derives how updates are encoded. ``attack`` takes that plan, the columns and, where the site's own
administrator asks for it, records, and answers with a report (`edge_node.leakage.evidence`). What
is attacked is the task's first model: its seed is the job's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edge_node.leakage.evidence import pack_report
from edge_node.tasks.batches import read_batch
from edge_node.tasks.task import Task, TaskError, load_task, spec_of
from edge_node.trainer.batch_port import BatchPort
from edge_node.trainer.frames import ATTACK, DESCRIBE, Start
from privacy.announcement import encoding_for_version
from privacy.leakage.audit import Effort, audit
from privacy.leakage.fields import Batch, Field
from privacy.leakage.scene import Scene
from privacy.leakage.verdict import worst_of
from privacy.pipeline import EncodingPlan, Mode
from tidegate.schema import Column, Schema


class LeakageAttacks:
    """One task under attack."""

    def __init__(self, start: Start, port: BatchPort, folder: Path, device: torch.device) -> None:
        """Load the task; its code runs from here on.

        Raises:
            TaskError: The app breaks a rule.
            Exception: Whatever the app raises.
        """
        base_models = {name: Path(path) for name, path in start.base_models}
        self._task: Task = load_task(folder, start.task_file, start.seed, base_models)
        self._task.model.to(device)
        self._spec = spec_of(self._task.model)
        self._port = port

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request; bytes lie in the shared memory.

        Raises:
            TaskError: The job does not fit the attacks.
            Exception: Whatever the app raises.
        """
        if request["action"] == DESCRIBE:
            return self._port.put_blob(self._spec.to_bytes())
        if request["action"] != ATTACK:
            raise TaskError(f"nothing is known of a request for {request['action']!r}")
        plan_bytes, columns, rows = self._parts(request["sizes"])
        schema = Schema(tuple(_column(entry) for entry in json.loads(columns)))
        plan = encoding_for_version(EncodingPlan.from_bytes(plan_bytes), 0)
        effort = Effort(**request["effort"])
        reports = [
            audit(
                self._scene(plan, schema, request, steps),
                request["seed"],
                effort,
                _records(rows, schema),
            )
            for steps in step_counts(request["local_steps"], time_boxed=request["time_boxed"])
        ]
        return self._port.put_blob(pack_report(worst_of(reports)))

    def _scene(
        self, plan: EncodingPlan, schema: Schema, request: Mapping[str, Any], steps: int
    ) -> Scene:
        steps_here = plan.mode is not Mode.RECORD_DISTRIBUTED
        rate = request["learning_rate"] if steps_here else None
        own = steps_here and rate is None
        return Scene(
            model=self._task.model,
            loss=self._loss,
            fields=tuple(
                Field(c.name, c.dtype, c.shape, c.low, c.high, c.levels) for c in schema.columns
            ),
            spec=self._spec,
            plan=plan,
            sites=request["sites"],
            records=request["records"],
            local_steps=steps,
            nominal_steps=request["local_steps"],
            learning_rate=rate,
            optimiser=self._task.make_optimizer if own else None,
        )

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        columns, collate = dict(batch), self._task.collate
        return self._task.loss(model, columns if collate is None else collate(columns))

    def _parts(self, sizes: list[int]) -> list[bytes]:
        parts, begin = [], 0
        for size in sizes:
            parts.append(self._port.arrays.blob[begin : begin + size].tobytes())
            begin += size
        return parts


def step_counts(most: int, *, time_boxed: bool) -> tuple[int, ...]:
    """Give which numbers of local steps to attack: the most and, where a site may stop, the fewest.

    A site that takes one step sends one gradient at a published version, the easiest to invert; the
    most steps show the most versions. Nobody but the site knows which it was, and it may be either.
    """
    return (1, most) if time_boxed and most > 1 else (most,)


def _column(entry: Mapping[str, Any]) -> Column:
    return Column(**{**entry, "shape": tuple(entry["shape"])})


def _records(rows: bytes, schema: Schema) -> Batch | None:
    if not rows:
        return None
    rows_NW = np.frombuffer(rows, dtype="<f4").reshape(-1, schema.width)
    return read_batch(torch.from_numpy(rows_NW.copy()), schema)
