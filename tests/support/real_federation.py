"""A whole consortium of real processes that tests may kill, stop and start again.

The aggregator keeps its ports, so that sites find it after a restart; the sites are
``tests.support.faulty_node``. Ports, processes and memory files are gone when the context ends.
"""

import os
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path

import grpc
import numpy as np

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium
from aggregator.cli.setup import Ports, make_consortium
from aggregator.cli.sites import make_token
from edge_node.budget import read_entries
from edge_node.store_schema import connect, read_ledgers
from privacy.errors import TidegateError
from privacy.secagg.keys import P256
from tests.support.live_aggregator import RECORD, SPEC, app_bundle, job_toml
from tidegate import appbundle
from tidegate.v1 import operator_pb2 as pb

ROOT = Path(__file__).parents[2]
SITES = tuple(f"bank-{number}" for number in range(1, 6))
TIMEOUTS = """
[timeouts]
share_keys_s = 1
masked_update_s = 1
consistency_s = 1
unmask_s = 1
"""
SITE_TOML = """
[site]
id = "{site}"
folder = "state"
[policy]
file = "policy.toml"
[store]
mirror_file = "generation"
boot_key_folder = "{boot}"
[session]
backoff_s = 0.05
backoff_max_s = 0.2
[datasets.credit]
loader = "npz"
path = "rows.npz"
"""
POLICY_TOML = """
modes = ["record-distributed"]
allowed_apps = ["sha256:{app}"]
datasets = ["credit"]
max_epsilon_per_job = 100.0
max_delta_dp = 1e-5
[budgets.credit]
epsilon = 30.0
delta_dp = 1e-5
alpha = 16
"""


class RealFederation(Consortium):
    """Five sites and an aggregator; ``begin`` starts all of it."""

    def begin(self, suite=P256):
        ports = Ports(*_free_ports(3))
        make_consortium(self.folder, "banks", "127.0.0.1", ports, suite)
        with (self.folder / "aggregator" / "aggregator.toml").open("a") as file:
            file.write(TIMEOUTS)
        self.start_aggregator_again()
        enrolling = []
        for site in SITES:
            self._make_site(site)
            token = self._site(site) / "token"
            make_token(self.operator(), site, token, 600)
            enrolling.append(self._node(site, "enrol", "--token-file", str(token)))
        assert [process.wait(60) for process in enrolling] == [0] * len(SITES)
        self.seal(1, 4)
        for site in SITES:
            self.run_site(site)
        self._wait("sites to connect", lambda: self._connected() == len(SITES))

    def start_aggregator_again(self):
        config = self.folder / "aggregator" / "aggregator.toml"
        (config.parent / "addresses.json").unlink(missing_ok=True)
        self._start("aggregator", [sys.executable, "-m", "aggregator", "--config", str(config)])
        self._wait("aggregator to listen", (config.parent / "addresses.json").exists)

    def run_site(self, site):
        self._node(site, "run")

    def arm(self, site, fault):
        """Have a running site strike itself down: see ``faulty_node``."""
        (self._site(site) / "fault").write_text(fault)
        self.processes[site].send_signal(signal.SIGUSR1)

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait(10)

    def struck(self, site, timeout_s=30.0):
        """Wait until a fault has killed or stopped a site."""
        process = self.processes[site]
        end_s = time.monotonic() + timeout_s
        while process.poll() is None and _state(process.pid) != "T":
            assert time.monotonic() < end_s, f"the fault did not strike {site}"
            time.sleep(0.01)
        if process.poll() is not None:
            assert process.returncode == -signal.SIGKILL
            del self.processes[site]

    def submit(self, rounds):
        record = RECORD.replace("noise_multiplier = 1.0", "noise_multiplier = 8.0")
        toml = job_toml(rounds=rounds, privacy=record, deadline=2.0)
        model, app = bytes(4 * SPEC.length), app_bundle()
        header = pb.SubmitJobHeader(
            job_toml=toml,
            vector_spec=SPEC.to_bytes(),
            app_size=len(app),
            app_sha256=appbundle.digest(app),
            model_size=len(model),
            model_sha256=appbundle.digest(model),
        )
        requests = [pb.SubmitJobRequest(header=header), pb.SubmitJobRequest(data=app + model)]
        with operator_api(self.operator()) as api:
            return api.SubmitJob(iter(requests)).job_id

    def job(self, job_id):
        with operator_api(self.operator()) as api:
            return api.GetJob(pb.GetJobRequest(job_id=job_id)).job

    def until(self, job_id, condition, timeout_s=40.0):
        """Wait until what is shown of a job meets a condition; an aggregator may be starting."""
        end_s, job = time.monotonic() + timeout_s, None
        while time.monotonic() < end_s:
            try:
                job = self.job(job_id)
            except (TidegateError, grpc.RpcError):
                time.sleep(0.1)
                continue
            if condition(job):
                return job
            time.sleep(0.03)
        raise AssertionError(f"waited {timeout_s:g} s: {job}")

    def stop_job(self, job_id):
        with operator_api(self.operator()) as api:
            api.StopJob(pb.StopJobRequest(job_id=job_id, why="enough"))

    def charges(self, site, job_id):
        """Give (round, attempt) of each charge in a site's ledger, verified link by link."""
        database = connect(self._site(site) / "state" / "site.db", read_only=True)
        try:
            entries = [e for ledger in read_ledgers(database) for e in read_entries(ledger)]
        finally:
            database.close()
        occasions = [entry.occasion for entry in entries]
        return [(o.round_number, o.attempt) for o in occasions if o.job_id == job_id]

    def journal(self, job_id, kind):
        """Give (round, attempt) of the aggregator's journal entries of a kind."""
        path = self.folder / "aggregator" / "aggregator.sqlite"
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        query = "SELECT round, attempt FROM journal WHERE job_id = ? AND kind = ? ORDER BY seq"
        try:
            return database.execute(query, (job_id, kind)).fetchall()
        finally:
            database.close()

    def kept_models(self, job_id):
        """Give what each site keeps on its disk of a job: a file's name, and its bytes."""
        found = {}
        for site in SITES:
            folder = self._site(site) / "state" / "models" / job_id
            (file,) = folder.glob("*.safetensors")
            found[site] = file.name, file.read_bytes()
        return found

    def newest_model(self, job_id):
        """Give the aggregator's newest version and its bytes, from its database."""
        path = self.folder / "aggregator" / "aggregator.sqlite"
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        query = "SELECT version, model FROM checkpoints WHERE job_id = ?"
        try:
            return database.execute(query, (job_id,)).fetchone()
        finally:
            database.close()

    def _site(self, site):
        return self.folder / "sites" / site

    def _make_site(self, site):
        folder, boot = self._site(site), self._boot_keys / site
        folder.mkdir(parents=True, mode=0o700)
        boot.mkdir(mode=0o700)
        (folder / "site.toml").write_text(SITE_TOML.format(site=site, boot=boot))
        app = appbundle.digest(app_bundle()).hex()
        (folder / "policy.toml").write_text(POLICY_TOML.format(app=app))
        np.savez(folder / "rows.npz", a=np.arange(200, dtype=np.float32))

    def _node(self, site, command, *more):
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        program = [sys.executable, "-m", "tests.support.faulty_node", command]
        config = str(self._site(site) / "site.toml")
        before, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH"), path
        try:
            return self._start(site, [*program, "--config", config, *more])
        finally:
            del os.environ["PYTHONPATH"]
            if before is not None:
                os.environ["PYTHONPATH"] = before


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
