"""A whole consortium on one machine, as the demo runs it: real processes, keys, TLS and policies.

Each edge node is a process with a folder of its own; nothing here is a shortcut past what a site
does by hand (README, "by hand"). Every process that was started is ended by its id, whatever
happens in between.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from aggregator.cli.connection import OperatorFolder, operator_api
from aggregator.cli.setup import Ports, make_consortium, seal_manifest
from aggregator.cli.sites import make_token
from aggregator.cli.submission import Submission
from privacy.accounting.calibration import best_alpha
from privacy.errors import UsageError
from privacy.planning import CohortRules, derive_encoding, step_event
from privacy.spec import VectorSpec
from tidegate.job_terms import privacy_terms, update_spec
from tidegate.jobfile import RECORD_DISTRIBUTED, JobFile, LocalPrivacy, RecordPrivacy
from tidegate.manifest import Manifest
from tidegate.v1 import operator_pb2

START_LIMIT_S = 90.0
STOP_LIMIT_S = 10.0
TOKEN_VALID_S = 600
BUDGET_FACTOR = 1.5
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a folder with a random name is made in it

SITE_TOML = """\
[site]
id = "{site}"
folder = "state"

[policy]
file = "policy.toml"

[store]
mirror_file = "generation"
boot_key_folder = "{boot_keys}"

[trainer]
threads = 1

[datasets.{dataset}]
loader = "npz"
path = "shard.npz"
"""

POLICY_TOML = """\
# What this bank allows; everything else is refused.
modes = ["{mode}"]
datasets = ["{dataset}"]
allowed_apps = ["sha256:{app}"]
max_epsilon_per_job = {epsilon}
max_delta_dp = {delta_dp}

# The data set's whole budget leaves room for attempts that are charged and then aborted.
[budgets.{dataset}]
epsilon = {budget}
delta_dp = {delta_dp}
alpha = {alpha}
"""


@dataclass(frozen=True)
class SitePlan:
    """What one site of the demo brings: its id, its folder with the data, what it allows."""

    site_id: str
    folder: Path
    dataset: str
    app_sha256: bytes
    epsilon: float
    delta_dp: float
    alpha: int
    mode: str = RECORD_DISTRIBUTED

    @classmethod
    def for_job(cls, folder: Path, submission: Submission, rules: CohortRules) -> Self:
        """Plan a site that allows one job: its app, data set, mode and epsilon, and no more.

        The budget's order is the one at which this job's plan costs least, so that the ledger
        shows what the job states; a budget for many jobs may be better off with another.

        Raises:
            UsageError: The job's privacy is not that of single records.
        """
        job = JobFile.parse(submission.job_toml)
        if not isinstance(job.privacy, RecordPrivacy | LocalPrivacy):
            raise UsageError("this consortium runs jobs in which each record is private")
        if job.privacy.unit.kind != "record":
            raise UsageError("this consortium's budgets are by record, the job's unit is the user")
        spec = VectorSpec.from_bytes(submission.vector_spec)
        summed = update_spec(job, spec)
        plan = derive_encoding(privacy_terms(job), summed, rules, bytes(32))
        whole_job = step_event(plan, rules, job.rounds)
        return cls(
            site_id=folder.name,
            folder=folder,
            dataset=job.dataset,
            app_sha256=submission.app_sha256,
            epsilon=job.privacy.epsilon,
            delta_dp=job.privacy.delta_dp,
            alpha=best_alpha([whole_job], job.privacy.delta_dp),
            mode=job.privacy.mode,
        )

    def write(self, boot_keys: Path) -> None:
        """Write site.toml and policy.toml beside the shard, as the site's administrator would."""
        files = {
            "site.toml": SITE_TOML.format(
                site=self.site_id, dataset=self.dataset, boot_keys=boot_keys / self.site_id
            ),
            "policy.toml": POLICY_TOML.format(
                dataset=self.dataset,
                mode=self.mode,
                app=self.app_sha256.hex(),
                epsilon=self.epsilon,
                budget=self.epsilon * BUDGET_FACTOR,
                delta_dp=self.delta_dp,
                alpha=self.alpha,
            ),
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)


@dataclass
class Consortium:
    """The processes of one aggregator and its sites; a context that ends them all.

    Attributes:
        folder: Where all of it lies, made anew.
        say: Told what a person should know.
        processes: Those that run, by name.
        host: Address at which the aggregator listens and the sites reach it.
    """

    folder: Path
    say: Callable[[str], None]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    host: str = "127.0.0.1"
    _boot_keys: Path = field(init=False)

    def __enter__(self) -> Self:
        memory = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
        self._boot_keys = Path(tempfile.mkdtemp(prefix="tidegate-demo-", dir=memory))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        shutil.rmtree(self._boot_keys)

    def operator(self) -> OperatorFolder:
        """Return the operator's folder."""
        return OperatorFolder.load(self.folder / "operator")

    def start_aggregator(self, name: str, settings: str = "") -> None:
        """Make the consortium's folders and start its aggregator on free ports.

        Args:
            name: The consortium's id.
            settings: What stands in aggregator.toml besides, as TOML.
        """
        make_consortium(self.folder, name, self.host, Ports(0, 0, 0))
        config = self.folder / "aggregator" / "aggregator.toml"
        with config.open("a") as file:
            file.write("keep_last_uploads = true\n")  # for the report's "what the aggregator saw"
            file.write(settings)
        program = [sys.executable, "-P", "-m", "aggregator", "--config", str(config)]
        self._start("aggregator", program)
        addresses = self.folder / "aggregator" / "addresses.json"
        self._wait("aggregator to listen", addresses.exists)

    def enrol(self, sites: Sequence[SitePlan]) -> None:
        """Let every site enrol by a one-time token of its own; keys are made at the site."""
        running = {}
        for site in sites:
            site.write(self._boot_keys)
            (self._boot_keys / site.site_id).mkdir(mode=0o700)
            token = site.folder / "token"
            make_token(self.operator(), site.site_id, token, TOKEN_VALID_S)
            program = [*_edge_node(), "enrol", "--config", str(site.folder / "site.toml")]
            name = f"enrol {site.site_id}"
            running[name] = self._start(name, [*program, "--token-file", str(token)])
        for name, process in running.items():
            status = process.wait(timeout=START_LIMIT_S)
            del self.processes[name]
            if status:
                raise UsageError(f"{name} failed with exit status {status}: {self._tail(name)}")
        for site in sites:
            (site.folder / "token").unlink(missing_ok=True)

    def seal(self, colluders: int, min_survivors: int) -> Manifest:
        """Seal the manifest with the operator key."""
        return seal_manifest(self.operator(), colluders, min_survivors)

    def start_sites(self, sites: Sequence[SitePlan]) -> None:
        """Start the edge nodes and wait until all are connected."""
        for site in sites:
            program = [*_edge_node(), "run", "--config", str(site.folder / "site.toml")]
            self._start(site.site_id, program)
        self._wait("sites to connect", lambda: self._connected() == len(sites))

    def check_alive(self) -> None:
        """Raise when a process of the consortium has ended by itself.

        Raises:
            UsageError: Names the process and its last words.
        """
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise UsageError(
                    f"{name} ended with exit status {process.returncode}: {self._tail(name)}"
                )

    @contextlib.contextmanager
    def guarded(self, stop_waiting: Callable[[], object]) -> Iterator[None]:
        """Watch the processes while the caller waits for something that only they can bring.

        Args:
            stop_waiting: Called from another thread, once, when a process has ended by itself.

        Raises:
            UsageError: One has; names it and its last words.
        """
        watched = select.poll()
        ended, done = os.pipe()
        handles = [os.pidfd_open(process.pid) for process in self.processes.values()]
        for handle in (ended, *handles):
            watched.register(handle, select.POLLIN)

        def wait() -> None:
            if all(handle != ended for handle, _ in watched.poll()):
                stop_waiting()

        watcher = threading.Thread(target=wait, name="watch the processes")
        watcher.start()
        try:
            yield
        finally:
            os.close(done)  # wakes the watcher, if nothing else has
            watcher.join()
            for handle in (ended, *handles):
                os.close(handle)
            self.check_alive()

    def stop(self) -> None:
        """End every process: sites first, so that they take their leave; then the aggregator."""
        for group in (
            [name for name in self.processes if name != "aggregator"],
            [name for name in self.processes if name == "aggregator"],
        ):
            for name in group:
                with contextlib.suppress(ProcessLookupError):
                    self.processes[name].send_signal(signal.SIGTERM)
            deadline_s = time.monotonic() + STOP_LIMIT_S
            for name in group:
                process = self.processes.pop(name)
                try:
                    process.wait(timeout=max(0.1, deadline_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.say(f"{name} did not end in {STOP_LIMIT_S:.0f} s: killed")
                    process.kill()
                    process.wait()

    def log_file(self, name: str) -> Path:
        """Return where a process's output goes."""
        return self.folder / "logs" / f"{name.replace(' ', '-')}.log"

    def _start(self, name: str, program: list[str]) -> subprocess.Popen[bytes]:
        path = self.log_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with path.open("wb") as log:
            # A session of its own: Ctrl-C reaches the demo alone, which ends the others in order.
            process = subprocess.Popen(  # noqa: S603 - our own programs, no shell
                program,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        self.processes[name] = process
        return process

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not ready():
            self.check_alive()
            if time.monotonic() > deadline_s:
                raise UsageError(
                    f"waited {START_LIMIT_S:.0f} s for the {what}: see {self.folder / 'logs'}"
                )
            time.sleep(0.1)

    def _connected(self) -> int:
        with operator_api(self.operator()) as api:
            return int(api.GetStatus(operator_pb2.GetStatusRequest()).sites_connected)

    def _tail(self, name: str) -> str:
        lines = self.log_file(name).read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "no output"


def _edge_node() -> list[str]:
    """Return how to start the edge node: the console script beside this Python."""
    return [str(Path(sys.executable).with_name("edge-node"))]


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal unwind like Ctrl-C: the processes are ended either way."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
