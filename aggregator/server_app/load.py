"""Load and run an app's ServerApp as Flower does, in a process of its own.

What main draws at random must be the same when it is re-run after a crash, so the generators that
apps use without asking are seeded first; the seed is the job's.
"""

import importlib
import random
import sys
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from privacy.errors import UsageError
from tidegate.flower_bridge import NODE_ID, RUN_ID, assume_task_identity, has_main
from tidegate.jobfile.work_kinds import Setting

_SEED_RANGE = 1 << 32


def prepare_process(seed: int, threads: int) -> None:
    """Make this process repeatable: seeds, threads, and the right to make Flower messages."""
    random.seed(seed)
    np.random.seed(seed % _SEED_RANGE)  # noqa: NPY002 - the app's generator, not ours
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    assume_task_identity()


def load_object(folder: str, reference: str) -> object:
    """Import ``package.module:object`` from an app folder without writing byte code beside it.

    Raises:
        UsageError: There is no such module or object.
    """
    module_name, _, path = reference.partition(":")
    sys.dont_write_bytecode = True
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found: object = importlib.import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{module_name} has no {path!r}: pyproject.toml or job.toml names it")
        found = getattr(found, name)
    return found


def load_server_app(folder: str, reference: str) -> ServerApp:
    """Load the ServerApp.

    Raises:
        UsageError: It is none, or one of Flower's older API.
    """
    app = load_object(folder, reference)
    if not isinstance(app, ServerApp):
        raise UsageError(f"{reference} is a {type(app).__name__}, not a flwr.serverapp.ServerApp")
    if not has_main(app):
        raise UsageError(
            f"the ServerApp {reference} has no @app.main(): apps with server_fn belong to Flower's"
            " older API, whose strategies ask for single replies; write a main(grid, context), or"
            " state driver = 'strategy', a [strategy] and [flower] model in job.toml"
        )
    return app


def run_main(app: ServerApp, grid: Grid, run_config: Mapping[str, Setting]) -> None:
    """Run the app's main to its end."""
    context = Context(
        run_id=RUN_ID,
        node_id=NODE_ID,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config),
    )
    app(grid, context)
