"""Let a job's own ServerApp drive it: answer the calls of its main with secure exchanges.

Main runs unchanged in a confined process. Whatever model it sends becomes the version that sites
download: a new one where it differs from the newest. Each ``send_and_receive`` is one exchange.
After a crash main is re-run from its start: its first calls are answered from the store, and what
it sends is compared with what it sent then, so that the job goes on exactly or not at all.

The model of the job is the newest of what main sent, what it heard as the mean of a training, and
what a strategy's ``start`` ended with. ``[job] rounds`` is the most calls that main may make,
trainings and evaluations together: each was counted when epsilon was.

Shapes: D = coordinates of the model vector.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.config import ServerAppSettings
from aggregator.runner import EVALUATION_PREFIX, JobRunner
from aggregator.secure_rounds import Instruction
from aggregator.server_app import frames
from aggregator.server_app.child import ServerAppChild
from aggregator.server_app.frames import SEED, ExchangeFrame, Start
from aggregator.server_app.store import Answer, CallStore, request_digest
from privacy.errors import PeerError, Reason, UsageError
from tidegate import appbundle, flower_config
from tidegate.flower_project import FILE as PROJECT_FILE
from tidegate.flower_project import read_project
from tidegate.jobfile import FlowerApp

Vector = NDArray[np.float32]

_SAMPLING_QUESTIONS = 2
_MANY_QUESTIONS = 30
_MOST_QUESTIONS = 100_000
_PURPOSE = re.compile(r"(train|evaluate)(\.[A-Za-z_][A-Za-z0-9_]{0,31})?")


class ServerAppDriver:
    """One run of a job's main, from its start to its end."""

    def __init__(
        self,
        runner: JobRunner,
        calls: CallStore,
        child: ServerAppChild,
        time_limit_s: float,
    ) -> None:
        """Take what carries exchanges out, what keeps the calls, the process and its limit."""
        self._runner = runner
        self._calls = calls
        self._child = child
        self._time_limit_s = time_limit_s
        self._asked = 0
        self._skipped = False
        self._widened = False
        self._questions = 0
        self._node_ids: tuple[int, ...] = ()
        self._latest_D: Vector | None = None

    def run(self) -> None:
        """Answer main until it returns; blocks.

        Raises:
            UsageError: The app failed, was refused, asked for too much, or is not repeatable.
            PeerError: The job was stopped or given up.
        """
        missing = frames.read_missing(self._receive())
        if missing:
            self._runner.say(f"the ServerApp's sandbox lacks: {missing}")
        while True:
            frame = self._receive()
            self._check_patience()
            if frames.NODES in frame:
                self._tell_nodes()
            elif frames.EXCHANGE in frame:
                self._exchange(frames.read_exchange(frame))
            elif frames.RESULT in frame:
                self._latest_D = self._sent()
            elif frames.DONE in frame:
                break
            else:
                raise PeerError(Reason.MALFORMED, "the ServerApp's process broke its protocol")
        if self._asked < self._runner.exchange:
            raise _diverged(f"it ended after {self._asked} calls, before after more")
        if self._latest_D is None:
            raise UsageError("the ServerApp's main returned without a call to the sites")
        self._runner.publish(self._latest_D)

    def _receive(self) -> dict[str, Any]:
        return self._child.receive(self._time_limit_s, self._runner.check_running)

    def _check_patience(self) -> None:
        """Give a main up that asks and asks, and never for an exchange."""
        self._questions += 1
        if self._questions == _MANY_QUESTIONS and self._node_ids:
            self._runner.say(
                f"the ServerApp keeps asking for nodes and is told of {len(self._node_ids)}: does"
                " its strategy want more (min_available_nodes) than there are?"
            )
        if self._questions > _MOST_QUESTIONS:
            raise UsageError(
                f"the ServerApp asked {_MOST_QUESTIONS} questions without a call to the sites"
            )

    def _sent(self) -> Vector:
        sent_D = self._child.memory.sent_D.copy()
        if not np.isfinite(sent_D).all():
            raise PeerError(Reason.NOT_FINITE, "the ServerApp's model holds NaN or infinity")
        return sent_D

    def _tell_nodes(self) -> None:
        stored = self._calls.load(self._runner.job_id, self._asked + 1)
        if stored is not None and stored.answer is not None:
            self._node_ids = stored.answer.node_ids
        else:
            # Flower's strategies ask twice while they sample; who goes on asking waits for more.
            again = self._questions > _SAMPLING_QUESTIONS
            self._node_ids = tuple(self._runner.wait_for_nodes(again=again))
        self._child.send({"node_ids": list(self._node_ids)})

    def _exchange(self, asked: ExchangeFrame) -> None:
        number, sent_D = self._asked + 1, self._sent()
        instruction = self._instruction(asked)
        if instruction.evaluates and self._runner.job.evaluation_plan is None:
            self._skip_evaluation()
            return
        self._check_count(number)
        request = request_digest(instruction, sent_D)
        stored = self._calls.load(self._runner.job_id, number)
        if stored is None and number <= self._runner.exchange:
            raise UsageError(f"call {number} of the ServerApp is missing from the store")
        if stored is not None and stored.request != request:
            raise _diverged(f"call {number} asks for something else than it did before")
        answer = stored.answer if stored is not None else None
        if answer is None:
            if stored is None:
                note = self._calls.begin(self._runner.job_id, number, request)
                self._runner.publish(sent_D, note)
            answer = self._carry_out(number, list(asked.node_ids), instruction, sent_D)
        self._asked, self._questions, self._node_ids = number, 0, ()
        self._latest_D = sent_D if answer.mean_D is None else answer.mean_D
        if answer.mean_D is not None:
            self._child.memory.mean_D[:] = answer.mean_D
        self._child.send({"mean": dict(answer.metrics)})

    def _instruction(self, asked: ExchangeFrame) -> Instruction:
        if _PURPOSE.fullmatch(asked.purpose) is None:
            raise PeerError(Reason.MALFORMED, "the ServerApp's call has no known purpose")
        if not 0 <= asked.config_bytes <= flower_config.MAX_BYTES:
            raise PeerError(Reason.TOO_LARGE, "the ServerApp's call has too many settings")
        config = self._child.memory.config[: asked.config_bytes].tobytes()
        flower_config.decode(config)
        return Instruction(asked.purpose, config)

    def _skip_evaluation(self) -> None:
        """Answer with no reply, as Flower does where no node evaluates."""
        if not self._skipped:
            self._runner.say(
                "the ServerApp asks for evaluation: none is made, as the job declares no"
                " [[evaluation_metrics]]"
            )
        self._skipped = True
        self._child.send({"given_up": True})

    def _check_count(self, number: int) -> None:
        most = self._runner.job.file.rounds
        if number > most:
            if self._latest_D is not None:
                self._runner.publish(self._latest_D)
            raise UsageError(
                f"the ServerApp asks for more than [job] rounds = {most} trainings and evaluations"
                " together: the job ends with the model that it has; state more rounds, or have"
                " main ask for fewer"
            )

    def _enough(self, node_ids: list[int]) -> list[int]:
        """Add nodes at random where main samples fewer than a cohort needs.

        Apps as they come sample two nodes or half of them; a mean over so few is never opened.
        """
        if len(set(node_ids)) >= self._runner.min_sites:
            return node_ids
        others = sorted(set(self._runner.wait_for_nodes()) - set(node_ids))
        missing = max(self._runner.min_sites, self._runner.job.file.round.target_sites)
        missing = min(missing - len(set(node_ids)), len(others))
        if not self._widened:
            self._runner.say(
                f"the ServerApp asks {len(node_ids)} nodes, a cohort needs"
                f" {self._runner.min_sites} or more: {missing} others are asked too"
            )
        self._widened = True
        return [*node_ids, *SystemRandom().sample(others, missing)]

    def _carry_out(
        self, number: int, node_ids: list[int], instruction: Instruction, sent_D: Vector
    ) -> Answer:
        """Run an exchange and keep its answer before main hears it."""
        mean = self._runner.run_round(self._enough(node_ids), instruction)
        mean_D, prefix = None, EVALUATION_PREFIX
        if not instruction.evaluates:
            mean_D, prefix = (sent_D + mean.values_U).astype(np.float32), ""
            if not np.isfinite(mean_D).all():
                raise PeerError(Reason.NOT_FINITE, "the mean model left the finite numbers")
        answer = Answer(self._node_ids, mean.metrics, mean_D)
        shown = {prefix + name: value for name, value in mean.metrics.items()}
        finish = self._calls.finish(self._runner.job_id, number, answer)
        self._runner.commit(shown, instruction.purpose, also=finish)
        return answer


def run_server_app(
    runner: JobRunner, calls: CallStore, settings: ServerAppSettings, folder: Path
) -> None:
    """Run a job by its own ServerApp; blocks.

    Args:
        runner: Carries its exchanges out.
        calls: Keeps what main asks and hears.
        settings: What the process may use.
        folder: The aggregator's, where the app is unpacked and its log is kept.

    Raises:
        UsageError: The app failed, was refused, or is not repeatable.
        PeerError: The job was stopped or given up.
    """
    job, work = runner.job, runner.job.file.work
    if not isinstance(work, FlowerApp):
        raise UsageError("only a [flower] job has a ServerApp")
    project = read_project(appbundle.read(job.app).get(PROJECT_FILE, b""))
    with _unpacked(job.app, folder, job.job_id) as app_folder:
        start = Start(
            app_folder=str(app_folder),
            reference=project.server_app,
            run_config=project.run_config(work.run_config),
            spec_bytes=len(job.vector_spec),
            model_length=job.spec.length,
            seed=SEED,
            single_reply=work.single_reply,
            memory_mib=settings.memory_mib,
            scratch_mib=settings.scratch_mib,
            threads=settings.threads,
            hidden=(str(folder),),
            required=settings.sandbox == "required",
        )
        log_path = app_folder.with_suffix(".log")
        child = ServerAppChild(start, job.vector_spec, log_path)
        try:
            ServerAppDriver(runner, calls, child, settings.time_limit_s).run()
        finally:
            child.end()


@contextmanager
def _unpacked(app: bytes, folder: Path, job_id: str) -> Iterator[Path]:
    """Unpack an app for as long as it runs."""
    app_folder = folder / "server-apps" / job_id
    shutil.rmtree(app_folder, ignore_errors=True)
    appbundle.unpack(app, app_folder)
    try:
        yield app_folder
    finally:
        shutil.rmtree(app_folder, ignore_errors=True)


def _diverged(how: str) -> UsageError:
    return UsageError(
        f"the ServerApp's main is not repeatable: re-run after a stop of the aggregator, {how}; it"
        " may depend on nothing but its settings, what it hears, and torch's, numpy's and random's"
        " generators, which are seeded. Submit the job again"
    )
