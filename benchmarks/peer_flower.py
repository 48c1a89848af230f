"""Run Flower's deployment engine on loopback, as its users do: one superlink, n supernodes.

The peer does less work: no secure aggregation, no differential privacy, no client certificates, no
TLS here, and the echo app's clients do not train: what is timed with it is what its engine takes
for an empty round.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.own_network import ADDRESS, OwnNetwork
from benchmarks.tagged_processes import TAG, PeakMemory, PeerRounds, end_all

APP = Path(__file__).parent / "apps" / "flower_echo"
LICENSE = Path(__file__).parents[1] / "LICENSE"
LACKS = "no secure aggregation, no DP, no mTLS, no training"
START_LIMIT_S = 120.0
ROUND_LIMIT_S = 120.0
AGGREGATOR_PARTS = {"SuperLink": "flower-superlink", "ServerApp": "flwr-serverapp"}
"""What Flower's aggregator consists of: a word of each command line, by part."""


@dataclass
class FlowerDeployment:
    """The processes of one superlink and its supernodes; a context that ends them all.

    Attributes:
        nodes: How many supernodes.
        network: Where they run, node k in the namespace of ``site-k``; None for loopback.
        node_config: For each node, what its apps read: ``key="text"`` pairs; empty for none.
    """

    nodes: int
    network: OwnNetwork | None = None
    node_config: Sequence[str] = ()
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

    def run(self, app: Path, config: Mapping[str, float | str]) -> PeerRounds:
        """Run an app that writes ``rounds_s`` as JSON to the path ``out``, and watch its memory.

        Args:
            app: Its folder.
            config: What the app's run config is set to; holds ``rounds``.

        Raises:
            RuntimeError: It did not start or end; holds the last words.
        """
        out = self.folder / "times.json"
        place = self.folder / "app"
        shutil.copytree(app, place, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(LICENSE, place / "LICENSE")  # its bundles must hold one
        pairs = {**config, "nodes": self.nodes, "out": str(out)}
        run = [_program("flwr"), "run", str(place), "bench", "--run-config", toml_pairs(pairs)]
        with PeakMemory(str(self.folder), AGGREGATOR_PARTS) as memory:
            done = subprocess.run(
                run, env=self._environment("cli"), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"flwr run failed: {done.stdout[-500:]} {done.stderr[-500:]}")
            self._wait("its rounds", out.exists, ROUND_LIMIT_S * int(config["rounds"]))
        return PeerRounds(list(json.loads(out.read_text())["rounds_s"]), memory.peaks)

    def stop(self) -> None:
        """End every process of this deployment by its id, detached ones too; remove its folder."""
        end_all(str(self.folder))
        for process in self.processes.values():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_all(self) -> None:
        fleet_port = _free_port()
        host = "127.0.0.1" if self.network is None else ADDRESS
        self.superlink = f"{host}:{fleet_port}"
        home = self.folder / "cli"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "bench"\n[superlink.bench]\n'
            f'address = "{self.superlink}"\ninsecure = true\n'
        )
        where = ["--host", host, "--port", str(fleet_port)]
        alone = "--disable-runtime-dependency-installation"
        self._start("superlink", [_program("flower-superlink"), "--insecure", *where, alone])
        self._wait("its superlink", lambda: _listens(host, fleet_port), START_LIMIT_S)
        for index in range(self.nodes):
            self._start(f"node-{index}", self._supernode(index))
        self._wait("its nodes", self._all_active, START_LIMIT_S)

    def _supernode(self, index: int) -> list[str]:
        inside = [] if self.network is None else self.network.inside(f"site-{index}")
        program = [_program("flower-supernode"), "--insecure", "--superlink", self.superlink]
        where = ["--host", "127.0.0.1", "--port", str(_free_port())]
        config = ["--node-config", self.node_config[index]] if self.node_config else []
        return [*inside, *program, *where, *config]

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
            TAG: str(self.folder),
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


def toml_pairs(values: Mapping[str, float | str]) -> str:
    """Write values as Flower's command line takes them: TOML pairs with blanks between."""
    return " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in values.items()
    )


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True
