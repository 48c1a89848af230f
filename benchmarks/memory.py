"""Measure the aggregator's peak memory with few and with many sites.

    python -m benchmarks.memory [--length 25000000] [--few 4] [--many 16] [--rounds 2] [--json FILE]

The aggregator is the real process; a fresh one takes each run. The sites are simulated in this
process (``simulated_site``): real enrolment, mTLS, wire protocol and SA-1, but no training. The
peak is ``VmHWM`` of the aggregator after the job. The named baseline is the same aggregator with
few sites: a fold that held one vector a site would grow by (many - few) vectors, 1.2 GB by default.
"""

import argparse
import asyncio
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from safetensors.numpy import load_file

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium
from aggregator.cli.models import write_chunks
from aggregator.cli.output import data_size, table_of
from aggregator.cli.sites import make_token
from aggregator.cli.submission import Submission, requests_of
from benchmarks import figures
from benchmarks.job_text import with_values
from benchmarks.process_cost import AGGREGATOR, peak_rss_bytes
from benchmarks.rounds import min_survivors
from benchmarks.scratch import scratch_folder
from benchmarks.simulated_site import SimulatedSite, constant_delta, enrol_site
from privacy.spec import TensorSpec, VectorSpec
from tidegate import appbundle
from tidegate.jobfile import JobFile
from tidegate.v1 import operator_pb2

APP = Path(__file__).parent / "apps" / "constant"
COLLUDERS = 1
TOKEN_VALID_S = 600
CONNECT_LIMIT_S = 60.0


@dataclass(frozen=True)
class Figure:
    """What one run gave; bytes and seconds."""

    sites: int
    rss_idle: int
    rss_peak: int
    seconds_per_round: float


class SiteThread:
    """The simulated sites on an event loop of their own."""

    def __init__(self, sites: list[SimulatedSite]) -> None:
        """Start them; the thread never keeps the benchmark from ending."""
        self.failure: BaseException | None = None
        self._sites = sites
        self._thread = threading.Thread(target=self._run, daemon=True, name="sites")
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:  # noqa: BLE001 - kept for the thread that waits
            self.failure = error

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for site in self._sites:
                tasks.create_task(site.run())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=25_000_000, help="parameters of the model")
    parser.add_argument("--few", type=int, default=4, help="sites of the baseline")
    parser.add_argument("--many", type=int, default=16, help="sites to compare with")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each job")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if options.few < 4 or options.many <= options.few:
        parser.error("needs at least 4 sites, and more in the second run")
    return options


def main() -> None:
    options = parse()
    out = figures.console()
    found = []
    with scratch_folder() as scratch:
        try:
            for sites in (options.few, options.many):
                out.print(f"{sites} sites, {options.length:,} parameters ...")
                found.append(_measure(options, sites, scratch / str(sites), out))
        except KeyboardInterrupt:
            sys.exit(130)
    ratio = found[1].rss_peak / found[0].rss_peak
    rows = [
        (
            str(figure.sites),
            data_size(figure.rss_idle),
            data_size(figure.rss_peak),
            f"{figure.seconds_per_round:.1f}",
        )
        for figure in found
    ]
    columns = ("#sites", "#RSS idle", "#RSS peak", "#s a round")
    title = f"aggregator, vector of {data_size(4 * options.length)}"
    out.print(table_of(title, columns, rows))
    out.print(f"peak with {options.many} sites / peak with {options.few} = {ratio:.3f}")
    result = {f"rss_{figure.sites}": figure.rss_peak for figure in found}
    runs = [asdict(figure) for figure in found]
    figures.write_json(
        options.json, {**result, "ratio": ratio, "length": options.length, "runs": runs}
    )


def _measure(options: argparse.Namespace, count: int, folder: Path, out: Console) -> Figure:
    submission = _submission(options, count)
    with Consortium(folder / "consortium", out.print) as consortium:
        consortium.start_aggregator("memory-benchmark")
        pid = consortium.processes[AGGREGATOR].pid
        sites = [_enrolled(consortium, folder, index) for index in range(count)]
        consortium.seal(COLLUDERS, min_survivors(count))
        thread = SiteThread(sites)
        _wait_connected(consortium, thread, count)
        rss_idle = peak_rss_bytes(pid)
        begin_s = time.monotonic()
        job = _run_job(consortium, submission)
        seconds = time.monotonic() - begin_s
        if job.state != "finished":
            why = f"the job {job.state}: {job.detail} {' | '.join(job.log)}"
            raise RuntimeError(why) from thread.failure
        figure = Figure(count, rss_idle, peak_rss_bytes(pid), seconds / job.round)
        _check_model(consortium, job, folder, options.length)
        return figure


def _submission(options: argparse.Namespace, sites: int) -> Submission:
    values = {"rounds": options.rounds, "target_sites": sites}
    job_toml = with_values((APP / "job.toml").read_text(), values)
    spec = VectorSpec((TensorSpec("flat", (options.length,)),))
    return Submission(
        job=JobFile.parse(job_toml),
        job_toml=job_toml,
        vector_spec=spec.to_bytes(),
        app=appbundle.pack(APP),
        model=np.zeros(options.length, "<f4").tobytes(),
    )


def _enrolled(consortium: Consortium, folder: Path, index: int) -> SimulatedSite:
    site_id = f"site-{index}"
    token = folder / f"{site_id}.token"
    make_token(consortium.operator(), site_id, token, TOKEN_VALID_S)
    credentials = enrol_site(site_id, folder / "sites" / site_id, token.read_text())
    token.unlink()
    return SimulatedSite(site_id, credentials)


def _wait_connected(consortium: Consortium, thread: SiteThread, count: int) -> None:
    deadline_s = time.monotonic() + CONNECT_LIMIT_S
    with operator_api(consortium.operator()) as api:
        while api.GetStatus(operator_pb2.GetStatusRequest()).sites_connected < count:
            consortium.check_alive()
            if thread.failure is not None or time.monotonic() > deadline_s:
                raise RuntimeError("the simulated sites did not connect") from thread.failure
            time.sleep(0.2)


def _run_job(consortium: Consortium, submission: Submission) -> Any:
    job = operator_pb2.Job()
    with operator_api(consortium.operator()) as api:
        job_id = api.SubmitJob(requests_of(submission)).job_id
        for update in api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id)):
            job = update.job
    consortium.check_alive()
    return job


def _check_model(consortium: Consortium, job: Any, folder: Path, length: int) -> None:
    """Refuse to report a run whose sums were wrong: every site moved every parameter alike."""
    file = folder / "model.safetensors"
    request = operator_pb2.ExportModelRequest(job_id=job.job_id)
    with operator_api(consortium.operator()) as api:
        write_chunks(api.ExportModel(request), file)
    flat_D = load_file(file)["flat"]
    file.unlink()
    expected = job.round * constant_delta(1.0, length)
    if flat_D.shape != (length,) or not np.allclose(flat_D, expected, rtol=1e-4, atol=0):
        raise RuntimeError(f"the model is not {expected} everywhere: the sums were wrong")


if __name__ == "__main__":
    main()
