"""Run an unchanged Flower ``ClientApp`` as Flower would, one message a call (trainer side).

The daemon hands over the model version, the message's settings and the app's state, and takes the
reply's arrays, a description of the reply and the new state; it judges the reply itself, as all
that comes from this process is hostile to it (``edge_node.flower.reply``).

A call's bytes: the vector spec, the settings (``tidegate.flower_config``) and the state, one after
the other, their lengths in the frame. An answer's bytes: the description, then the state.
"""

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from edge_node.flower.calls import describe_reply, make_call
from edge_node.flower.legacy import legacy_config, modern_reply
from edge_node.flower.reply import DESCRIPTION_BYTES
from edge_node.flower.state import state_from_bytes, state_to_bytes
from edge_node.trainer.batch_port import BatchPort
from edge_node.trainer.frames import Start
from privacy.errors import UsageError
from privacy.spec import VectorSpec
from tidegate import flower_config
from tidegate.flower_bridge import RUN_ID, assume_task_identity, is_legacy_app
from tidegate.flower_project import FILE, read_project


class FlowerAppError(Exception):
    """The app folder is not what a Flower app's has to be, or its answer cannot be given."""


class FlowerCalls:
    """One job's ClientApp, called message by message."""

    def __init__(self, start: Start, port: BatchPort, folder: Path) -> None:
        """Load the app; its code runs from here on.

        No generator is seeded: an app may draw the noise of its own privacy from torch's.

        Args:
            start: Its ``settings`` hold ``run_config`` (the job's overrides), ``node_config``,
                ``node_id``, and ``state_bytes``, the most that a state may take.
            port: Whose arrays the model comes from and goes to.
            folder: The unpacked app.

        Raises:
            FlowerAppError: The folder or its pyproject.toml is not a Flower app's.
            Exception: Whatever the app raises.
        """
        assume_task_identity()
        self._settings: dict[str, Any] = start.settings
        self._port = port
        self._spec_bytes = b""
        self._spec: VectorSpec | None = None
        self._app, self._run_config = load_client_app(folder, self._settings["run_config"])

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Call the app once and give the fields of the answer; arrays and bytes lie in memory.

        Raises:
            FlowerAppError: The answer cannot be given to the daemon.
            Exception: Whatever the app raises.
        """
        spec_bytes, config_bytes, state_bytes = self._parts(request["sizes"])
        spec = self._read_spec(spec_bytes)
        config = flower_config.decode(config_bytes) if config_bytes else flower_config.DEFAULT
        context = self._context(state_from_bytes(state_bytes))
        arrays = self._port.arrays
        reply = self._call(request["purpose"], spec, config, context)
        description = json.dumps(describe_reply(reply, spec, arrays.model_D)).encode("ascii")
        if len(description) > DESCRIPTION_BYTES:
            raise FlowerAppError("the reply holds more arrays than can be described")
        state = state_to_bytes(context.state, self._settings["state_bytes"])
        blob = np.frombuffer(description + state, dtype=np.uint8)
        arrays.blob[: len(blob)] = blob
        return {"description": len(description), "blob": len(blob)}

    def _call(
        self, purpose: str, spec: VectorSpec, config: flower_config.MessageConfig, context: Context
    ) -> object:
        legacy = is_legacy_app(self._app)
        names = legacy_config(config, purpose) if legacy else config
        model = spec.unflatten(self._port.arrays.model_D)
        message = make_call(model, names, purpose, context.node_id)
        reply: object = self._app(message, context)
        if legacy and isinstance(reply, Message):
            return modern_reply(reply, purpose, spec)
        return reply

    def _parts(self, sizes: list[int]) -> list[bytes]:
        parts, begin = [], 0
        for size in sizes:
            parts.append(self._port.arrays.blob[begin : begin + size].tobytes())
            begin += size
        return parts

    def _read_spec(self, raw: bytes) -> VectorSpec:
        if self._spec is None or raw != self._spec_bytes:
            self._spec, self._spec_bytes = VectorSpec.from_bytes(raw), raw
        return self._spec

    def _context(self, state: RecordDict) -> Context:
        return Context(
            run_id=RUN_ID,
            node_id=self._settings["node_id"],
            node_config=dict(self._settings["node_config"]),
            state=state,
            run_config=dict(self._run_config),
        )


def load_client_app(folder: Path, overrides: Mapping[str, Any]) -> tuple[ClientApp, dict[str, Any]]:
    """Load the ClientApp that an app's pyproject.toml names, and its run config.

    Args:
        folder: The app; it becomes the first place that imports look at, as under Flower.
        overrides: The job's ``run_config``.

    Raises:
        FlowerAppError: There is no such app.
        Exception: Whatever the app raises.
    """
    try:
        project = read_project((folder / FILE).read_bytes())
        run_config = project.run_config(overrides)
    except (OSError, UsageError) as error:
        raise FlowerAppError(str(error)) from error
    sys.path.insert(0, str(folder))
    module_name, _, attributes = project.client_app.partition(":")
    found: object = importlib.import_module(module_name)
    for attribute in attributes.split("."):
        found = getattr(found, attribute, None)
    if not isinstance(found, ClientApp):
        raise FlowerAppError(
            f"{project.client_app!r} is no ClientApp, as [tool.flwr.app.components] says it is"
        )
    return found, run_config
