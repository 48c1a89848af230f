"""Run Flower's deployment engine on loopback, as its users do: one superlink, n supernodes.

The peer does less work: no secure aggregation, no differential privacy, no client certificates, no
TLS here, and its clients do not train. What is timed is what its engine takes for an empty round.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

APP = Path(__file__).parent / "apps" / "flower_echo"
LICENSE = Path(__file__).parents[1] / "LICENSE"
LACKS = "no secure aggregation, no DP, no mTLS, no training"
START_LIMIT_S = 120.0
ROUND_LIMIT_S = 120.0
STOP_LIMIT_S = 10.0
_TAG = "TIDEGATE_BENCHMARK_PEER"


@dataclass
class FlowerDeployment:
    """The processes of one superlink and its supernodes; a context that ends them all."""

    nodes: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="flower-peer-")))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    superlink: str = ""

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def rounds_s(self, rounds: int, parameters: int) -> list[float]:
        """Run the echo app and return the seconds of each round."""
        out = self.folder / "times.json"
        config = f'rounds={rounds} nodes={self.nodes} parameters={parameters} out="{out}"'
        app = self.folder / "app"
        shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(LICENSE, app / "LICENSE")  # its bundles must hold one
        run = [_program("flwr"), "run", str(app), "bench", "--run-config", config]
        done = subprocess.run(
            run, env=self._environment("cli"), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"flwr run failed: {done.stdout[-500:]} {done.stderr[-500:]}")
        self._wait("its rounds", out.exists, ROUND_LIMIT_S * rounds)
        return list(json.loads(out.read_text())["rounds_s"])

    def stop(self) -> None:
        """End every process of this deployment by its id, detached ones too; remove its folder."""
        for found in _carrying(str(self.folder)):
            _quietly(found.terminate)
        gone, alive = psutil.wait_procs(_carrying(str(self.folder)), timeout=STOP_LIMIT_S)
        del gone
        for left in alive:
            _quietly(left.kill)
        for process in self.processes.values():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_all(self) -> None:
        fleet_port = _free_port()
        self.superlink = f"127.0.0.1:{fleet_port}"
        home = self.folder / "cli"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "bench"\n[superlink.bench]\n'
            f'address = "{self.superlink}"\ninsecure = true\n'
        )
        where = ["--host", "127.0.0.1", "--port"]
        alone = "--disable-runtime-dependency-installation"
        program = [_program("flower-superlink"), "--insecure", *where, str(fleet_port), alone]
        self._start("superlink", program)
        self._wait("its superlink", lambda: _listens(fleet_port), START_LIMIT_S)
        for index in range(self.nodes):
            program = [_program("flower-supernode"), "--insecure", "--superlink", self.superlink]
            self._start(f"node-{index}", [*program, *where, str(_free_port())])
        self._wait("its nodes", self._all_active, START_LIMIT_S)

    def _start(self, name: str, program: list[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment(name),
            )

    def _environment(self, name: str) -> dict[str, str]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        # An exported PYTHONSAFEPATH would hide the app from Flower's own processes.
        inherited = {key: text for key, text in os.environ.items() if key != "PYTHONSAFEPATH"}
        return {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            _TAG: str(self.folder),
        }

    def _all_active(self) -> bool:
        logs = [self.folder / f"node-{index}.log" for index in range(self.nodes)]
        return all("SuperNode ID" in log.read_text(errors="replace") for log in logs)

    def _wait(self, what: str, ready: Callable[[], bool], limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while not ready():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    log = (self.folder / f"{name}.log").read_text(errors="replace")
                    raise RuntimeError(f"the peer's {name} ended: {log[-500:]}")
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"waited {limit_s:.0f} s for the peer and {what}")
            time.sleep(0.2)


def _carrying(tag: str) -> list[psutil.Process]:
    """Return the processes that this deployment started: they alone carry its folder as a tag."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_TAG) == tag:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except psutil.NoSuchProcess:
        return


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
