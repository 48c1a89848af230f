"""Rehearse a Flower app before it is submitted: ``... server_app.rehearsal FOLDER JOB_TOML OUT``.

A program of its own (``python -m``), so that an app's code never shares the process that holds the
operator's keys. It runs the app's main as the aggregator will, over a grid that answers each call
with the very model that was sent, until main returns or some seconds are over; or it calls the
function that ``[flower] model`` names. It writes the vector spec to ``OUT/spec`` and the first
model to ``OUT/model``, and says on the standard output, as JSON, what main asked for. A fault is
one line on the standard error, and exit status 2.
"""

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from aggregator.secure_grid import GridCall, GridMean, SecureGrid
from aggregator.server_app.frames import SEED
from aggregator.server_app.load import (
    load_object,
    load_server_app,
    prepare_process,
    run_main,
)
from aggregator.server_app.strategy_watch import check_strategy, watch_strategies
from privacy.errors import PeerError, TidegateError, UsageError
from privacy.spec import VectorSpec
from tidegate.app_faults import describe_fault
from tidegate.flower_config import decode
from tidegate.flower_messages import as_float32
from tidegate.flower_project import FILE as PROJECT_FILE
from tidegate.flower_project import FlowerProject, read_project
from tidegate.jobfile import SERVER_APP, FlowerApp, JobFile

LONGEST_S = 30.0
"""Main is stopped after that, at its next call: what it has shown by then is enough."""

EXIT_USAGE = 2


class Enough(BaseException):
    """The rehearsal has seen what it needs."""


@dataclass
class Rehearsal:
    """``GridRounds`` of five sites that learn nothing; notes what main does.

    Attributes:
        job: The job file.
        only_first: Whether the first model and settings are all that is asked for.
        spec: Of that model.
        first_D: The model, shape (D,).
    """

    job: JobFile
    only_first: bool
    spec: VectorSpec | None = None
    first_D: NDArray[np.float32] | None = field(default=None, repr=False)
    trainings: int = 0
    evaluations: int = 0
    skipped_evaluations: int = 0
    complete: bool = False
    strategy: str = ""
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    late_s: float = field(default_factory=lambda: time.monotonic() + LONGEST_S)

    def wait_for_nodes(self) -> list[int]:
        """Give as many nodes as the job wants in a round."""
        return list(range(1, self.job.round.target_sites + 1))

    def exchange(self, call: GridCall) -> GridMean | None:
        """Answer with the model that was sent."""
        self.take(as_float32(call.arrays))
        asked = call.instruction
        kind = "evaluate" if asked.evaluates else "train"
        values = dict(decode(asked.config).values)
        for added in ("server-round", "proximal-mu"):
            values.pop(added, None)
        self.settings.setdefault(kind, values)
        if self.only_first and (asked.evaluates or self.trainings):
            raise Enough
        if asked.evaluates and not self.job.evaluation_metrics.length:
            self.skipped_evaluations += 1
            return None
        self.trainings += not asked.evaluates
        self.evaluations += asked.evaluates
        self._check_count()
        if time.monotonic() > self.late_s:
            raise Enough
        layout = self.job.evaluation_metrics if asked.evaluates else self.job.metrics
        metrics = {metric.name: 0.5 for metric in layout.metrics}
        return GridMean(None if asked.evaluates else as_float32(call.arrays), metrics)

    def take(self, named: dict[str, NDArray[np.float32]]) -> None:
        """Take a model; all have one shape, and the first is the job's.

        Raises:
            UsageError: It is of another shape, or not finite.
        """
        try:
            self.spec = self.spec or VectorSpec.of(named)
            values_D = self.spec.flatten(named)
        except PeerError as error:
            raise UsageError(f"the app's model cannot be broadcast: {error}") from None
        if not np.isfinite(values_D).all():
            raise UsageError("the app's model holds NaN or infinity")
        self.first_D = values_D if self.first_D is None else self.first_D

    def _check_count(self) -> None:
        calls, most = self.trainings + self.evaluations, self.job.rounds
        if calls > most:
            raise UsageError(
                f"the ServerApp asks for more than [job] rounds = {most} trainings and evaluations"
                " together; state more rounds, or have main ask for fewer"
            )

    def report(self) -> dict[str, object]:
        """Say what was seen."""
        return {
            "trainings": self.trainings,
            "evaluations": self.evaluations,
            "skipped_evaluations": self.skipped_evaluations,
            "complete": self.complete,
            "strategy": self.strategy,
            "train_config": self.settings.get("train", {}),
            "evaluate_config": self.settings.get("evaluate", {}),
        }


def rehearse(folder: Path, job: JobFile) -> Rehearsal:
    """Rehearse an app.

    Raises:
        UsageError: It cannot run; says why and where.
    """
    work = job.work
    if not isinstance(work, FlowerApp):
        raise UsageError("only a [flower] job has a Flower app to rehearse")
    try:
        raw = (folder / PROJECT_FILE).read_bytes()
    except OSError as error:
        raise UsageError(f"{PROJECT_FILE} cannot be read: {error.strerror}") from error
    project = read_project(raw)
    prepare_process(SEED, torch.get_num_threads())
    seen = Rehearsal(job, only_first=work.driver != SERVER_APP)
    if work.model:
        seen.take(_named(load_object(str(folder), work.model)))
        seen.complete = True
    elif project.server_app:
        _rehearse_main(folder, project, work, seen)
    else:
        raise UsageError(
            f"{PROJECT_FILE} names no serverapp, so nobody says what the first model is: name a"
            " function of the app that gives it, [flower] model = 'package.module:function'"
        )
    if seen.first_D is None:
        raise UsageError("the ServerApp's main returned without a call to the sites")
    return seen


def _rehearse_main(folder: Path, project: FlowerProject, work: FlowerApp, seen: Rehearsal) -> None:
    """Run main until it returns, or has shown enough."""
    settings = project.run_config(work.run_config)

    def started(strategy: Strategy, _: dict[str, Any]) -> None:
        seen.strategy = type(strategy).__name__

    check = partial(check_strategy, single_reply=work.single_reply)
    watch = watch_strategies(
        check=(lambda _: None) if seen.only_first else check,
        on_start=started,
        on_result=lambda arrays: seen.take(as_float32(arrays)),
    )
    with watch, contextlib.suppress(Enough):
        app = load_server_app(str(folder), project.server_app)
        try:
            run_main(app, SecureGrid(seen), settings)
        except Exception:
            # Another strategy will run: what main's own makes of one reply is of no interest.
            if not seen.only_first or seen.first_D is None:
                raise
        seen.complete = not seen.only_first


def _named(function: object) -> dict[str, NDArray[np.float32]]:
    """Call the function that gives the first model, and name its arrays as Flower does."""
    if not callable(function):
        raise UsageError("[flower] model has to name a function")
    made = function()
    if isinstance(made, torch.nn.Module):
        made = made.state_dict()
    if isinstance(made, ArrayRecord):
        return as_float32(made)
    if isinstance(made, list | tuple):
        made = {str(number): array for number, array in enumerate(made)}
    if not isinstance(made, dict) or not made:
        kind = type(made).__name__
        raise UsageError(f"[flower] model gave a {kind}: give arrays by name, or a torch module")
    arrays = {
        str(name): array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array
        for name, array in made.items()
    }
    return as_float32(ArrayRecord({name: Array(np.asarray(a)) for name, a in arrays.items()}))


def main() -> None:
    """Rehearse, and write what was seen."""
    folder, job_toml, out = (Path(argument).absolute() for argument in sys.argv[1:4])
    shown = os.dup(1)
    os.dup2(2, 1)  # what the app prints is no part of the report
    try:
        seen = rehearse(folder, JobFile.parse(job_toml.read_bytes()))
    except TidegateError as error:
        _fail(error.args[-1])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the app may raise anything
        _fail(describe_fault(error, folder))
    if seen.spec is None or seen.first_D is None:
        _fail("the app shows no model")
    (out / "spec").write_bytes(seen.spec.to_bytes())
    (out / "model").write_bytes(seen.first_D.astype("<f4").tobytes())
    os.write(shown, json.dumps(seen.report()).encode())


def _fail(message: object) -> NoReturn:
    sys.stderr.write(f"\n{message}\n")
    sys.stderr.flush()
    os._exit(EXIT_USAGE)  # threads of the app may never end


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
