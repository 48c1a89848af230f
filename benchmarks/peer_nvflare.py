"""Run NVFLARE 2.9 on loopback, as its users try it: a provisioned POC of a server and n clients.

It lives in a virtual environment of its own under the cache folder, made by the first run (about
250 MB; this needs the package index once) and never imported here. The peer does less work: no
secure aggregation and no differential privacy, and its clients do not train: each answers the model
shifted a little. A round is what lies between a client's receipt of one model and of the next.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.tagged_processes import TAG, PeakMemory, PeerRounds, end_all

VERSION = "2.9.0"
APP = Path(__file__).parent / "apps" / "nvflare_echo"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidegate-benchmarks"
LACKS = "no secure aggregation, no DP, no training"
AGGREGATOR_PARTS = {"server": "server.server_train", "server job": "server.runner_process"}
START_LIMIT_S = 240.0
ROUND_LIMIT_S = 240.0
MIN_ROUNDS = 3
"""A run of fewer has no round that pays for no start."""


def install() -> Path:
    """Make NVFLARE's environment if there is none yet; gives its folder of programs."""
    place = CACHE / f"nvflare-{VERSION}"
    if not (place / "complete").is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"nvflare=={VERSION}"], check=True)
        (place / "complete").touch()
    return place / "bin"


@dataclass
class NvflareDeployment:
    """The processes of one server and its clients; a context that ends them all."""

    nodes: int
    programs: Path
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="nvflare-peer-")
    )

    def __enter__(self) -> Self:
        try:
            for name in ("home", "poc", "marks"):
                (self.folder / name).mkdir()
            self._nvflare("poc", "config", "--pw", str(self.folder / "poc"))
            self._nvflare("poc", "prepare", "-n", str(self.nodes), "--force")
            self._nvflare("poc", "start", "--timeout", str(int(START_LIMIT_S)))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def folder(self) -> Path:
        """Return where everything of this deployment lies; also the tag of its processes."""
        return Path(self._folder.name)

    def run(self, rounds: int, parameters: int) -> PeerRounds:
        """Run FedAvg over one array of float32.

        Args:
            rounds: At least 3: the last one's end is not seen by a client.
            parameters: Length of the array.

        Raises:
            RuntimeError: The job did not start or end in time.
        """
        job = self.folder / "job"
        sizes = map(str, (parameters, self.nodes, rounds))
        script = [str(self.programs / "python"), str(APP / "job.py"), *sizes]
        self._check([*script, str(job), str(self.folder / "first.npy")])
        with PeakMemory(str(self.folder), AGGREGATOR_PARTS) as memory:
            self._nvflare("job", "submit", "-j", str(job / "echo"))
            marks_s = self._wait_for_marks(rounds)
        rounds_s = [after - before for before, after in itertools.pairwise(marks_s)]
        return PeerRounds(rounds_s, memory.peaks)

    def _wait_for_marks(self, rounds: int) -> list[float]:
        """Wait until a client has seen every round; Unix seconds of its receipts."""
        deadline_s = time.monotonic() + START_LIMIT_S + rounds * ROUND_LIMIT_S
        path = self.folder / "marks" / "site-1"
        while time.monotonic() < deadline_s:
            lines = path.read_text().splitlines() if path.is_file() else []
            if len(lines) >= rounds:
                return [float(line) for line in lines]
            time.sleep(0.2)
        raise RuntimeError(f"NVFLARE finished {len(lines)} of {rounds} rounds in time")

    def _nvflare(self, *arguments: str) -> None:
        answer = self._check([str(self.programs / "nvflare"), "--format", "json", *arguments])
        last = (answer.strip().splitlines() or ["{}"])[-1]
        if last.startswith("{") and json.loads(last).get("exit_code", 0):
            raise RuntimeError(f"nvflare {' '.join(arguments[:2])} failed: {last[-500:]}")

    def _check(self, program: list[str]) -> str:
        log = self.folder / "commands.log"
        with log.open("ab") as errors:  # a pipe would stay open in what the command leaves running
            out = self.folder / "answer"
            with out.open("wb") as answer:
                done = subprocess.run(
                    program,
                    env=self._environment(),
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=answer,
                    stderr=errors,
                    check=False,
                )
        if done.returncode:
            raise RuntimeError(f"{program[1:3]} failed: {log.read_text()[-500:]}")
        return out.read_text()

    def _environment(self) -> dict[str, str]:
        inherited = {key: text for key, text in os.environ.items() if key != "PYTHONSAFEPATH"}
        return {
            **inherited,
            "HOME": str(self.folder / "home"),
            "PATH": f"{self.programs}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": "1",
            "NVFLARE_ECHO_MARKS": str(self.folder / "marks"),
            TAG: str(self.folder),
        }

    def _stop(self) -> None:
        end_all(str(self.folder))
        self._folder.cleanup()
