"""Run a cohort above 200 sites for real, on the sparse graph, with sites dying between steps.

    python -m benchmarks.sparse_federation [--sites 216] [--rounds 3] [--dim 10000] [--json FILE]

The aggregator is the real process. The sites are simulated (``simulated_site``), shared out among a
few processes: real enrolment, mTLS, gRPC, participant and SA-1, each with a connection of its own,
but no training and no disk. In every round ``--killed`` sites die, in turn before they deal, before
they upload, before they vote and before they answer; in the last one more dies before it reveals
its r, which burns the attempt. The dead come back in the next round, as new instances.

The final model must be what the numbers of the survivors make, in every coordinate: all coordinates
equal to the bit, and to the expected value within single precision. Bytes are the aggregator's
counts, mean of a site and round. A site's CPU holds its whole process: TLS, gRPC, its key bundles.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium
from aggregator.cli.models import write_chunks
from aggregator.cli.output import data_size, table_of
from aggregator.cli.sites import make_token
from aggregator.cli.submission import Submission, requests_of
from benchmarks import figures
from benchmarks.job_text import with_values
from benchmarks.mortal_site import STEPS, value_of
from benchmarks.process_cost import AGGREGATOR, cpu_s, peak_rss_bytes
from benchmarks.round_clock import commit_times
from benchmarks.rounds import min_survivors
from benchmarks.scratch import scratch_folder
from benchmarks.simulated_site import constant_delta
from privacy.secagg.graph import STANDARD
from privacy.spec import TensorSpec, VectorSpec
from tidegate import appbundle
from tidegate.jobfile import JobFile
from tidegate.v1 import operator_pb2

APP = Path(__file__).parent / "apps" / "constant"
COLLUDER_PERCENT = 5
TOKEN_VALID_S = 3600
START_LIMIT_S = 600.0
SETTINGS = """
[timeouts]
reveal_s = 300
share_keys_s = 300
masked_update_s = 300
consistency_s = 300
unmask_s = 300
"""
"""Who dies is noticed by its connection; a busy machine is no reason to lose the others."""


@dataclass(frozen=True)
class Told:
    """What the processes of the sites said in the end.

    Attributes:
        cpu_s: Of all of them, from the first session on.
        scale: Of the job's encoding.
        sums: Fingerprints in each round's sum.
    """

    cpu_s: float
    scale: float
    sums: dict[int, list[bytes]]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, default=216, help="sites, 201 to 1000")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the job")
    parser.add_argument("--dim", type=int, default=10_000, help="parameters of the model")
    parser.add_argument("--killed", type=int, default=8, help="sites that die in each round")
    parser.add_argument("--processes", type=int, default=2, help="processes of the sites")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if not STANDARD.complete_up_to + options.killed + 1 < options.sites <= 1000:
        parser.error("needs at most 1000 sites, and more than 200 when those killed are gone")
    if options.rounds < 1 or options.dim < 1 or options.killed < 0 or options.processes < 1:
        parser.error("rounds, parameters and processes are at least 1, those killed at least 0")
    return options


def fates_of(names: Sequence[str], rounds: int, killed: int) -> dict[str, dict[int, str]]:
    """Say who dies before which step, by round; nobody dies in two rounds one after the other."""
    fates: dict[str, dict[int, str]] = {}
    for number in range(1, rounds + 1):
        first = (number - 1) * killed
        for count in range(killed):
            name = names[(first + count) % len(names)]
            fates.setdefault(name, {})[number] = STEPS[1 + count % (len(STEPS) - 1)]
    if killed:
        fates.setdefault(names[-1], {})[rounds] = STEPS[0]
    return fates


def main() -> None:
    options = parse()
    out = figures.console()
    with scratch_folder() as scratch:
        try:
            result = _measure(options, scratch, out.print)
        except KeyboardInterrupt:
            sys.exit(130)
    columns = ("#round", "#in the sum", "#s")
    out.print(table_of(f"{options.sites} sites, sparse graph", columns, _rows(result)))
    for line in _lines(result):
        out.print(line)
    figures.write_json(options.json, result)


def _lines(result: dict[str, Any]) -> tuple[str, ...]:
    up, down = (f"{result[key] / 1000:.1f} kB" for key in ("bytes_up", "bytes_down"))
    return (
        (
            f"aggregator: {data_size(result['rss_idle'])} idle, {data_size(result['rss_peak'])} at"
            f" most; {result['aggregator_cpu_s']:.1f} s of CPU a round"
        ),
        (
            f"a site: {result['site_cpu_ms']:.0f} ms of CPU a round; {up} up, of which"
            f" {result['vector_bytes'] / 1000:.1f} kB are the vector, {down} down"
        ),
        f"attempts aborted: {result['attempts_aborted']}; every sum right",
    )


def _rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (str(number), str(size), f"{seconds:.1f}")
        for number, (size, seconds) in enumerate(
            zip(result["sum_sites"], result["round_s"], strict=True), start=1
        )
    ]


def _measure(options: argparse.Namespace, folder: Path, say: Any) -> dict[str, Any]:
    names = [f"site-{index:04d}" for index in range(options.sites)]
    fates = fates_of(names, options.rounds, options.killed)
    with Consortium(folder / "consortium", say) as consortium:
        consortium.start_aggregator("sparse-benchmark", SETTINGS)
        pid = consortium.processes[AGGREGATOR].pid
        say(f"{options.sites} sites enrol ...")
        tokens = _tokens(consortium, folder, names)
        with _processes(options.processes, folder, tokens, fates) as processes:
            for process in processes:
                _hear(process)
            consortium.seal(options.sites * COLLUDER_PERCENT // 100, min_survivors(options.sites))
            for process in processes:
                _tell(process, "go")
            _wait_connected(consortium, processes, options.sites)
            rss_idle, spent_s = peak_rss_bytes(pid), cpu_s({AGGREGATOR: pid})[AGGREGATOR]
            say("the job runs ...")
            begin_s = time.time()
            job = _run_job(consortium, _submission(options))
            spent_s = cpu_s({AGGREGATOR: pid})[AGGREGATOR] - spent_s
            told = _told([_hear(process) for process in processes])
        _check_model(consortium, job, folder, options, told)
        committed = commit_times(consortium.folder / "aggregator" / "aggregator.sqlite")
        moments = [begin_s, *(committed[number] for number in range(1, job.round + 1))]
        taken = options.sites * job.round
        return {
            "sites": options.sites,
            "dim": options.dim,
            "rounds": job.round,
            "killed": options.killed,
            "round_s": [after - before for before, after in itertools.pairwise(moments)],
            "sum_sites": [len(told.sums[number]) for number in range(1, job.round + 1)],
            "attempts_aborted": job.attempts_aborted,
            "bytes_up": sum(site.bytes_up for site in job.sites) / taken,
            "bytes_down": sum(site.bytes_down for site in job.sites) / taken,
            "vector_bytes": 4 * options.dim,
            "rss_idle": rss_idle,
            "rss_peak": peak_rss_bytes(pid),
            "aggregator_cpu_s": spent_s / job.round,
            "site_cpu_ms": 1000 * told.cpu_s / taken,
        }


def _tokens(consortium: Consortium, folder: Path, names: Sequence[str]) -> dict[str, str]:
    tokens, operator = {}, consortium.operator()
    for name in names:
        file = folder / f"{name}.token"
        make_token(operator, name, file, TOKEN_VALID_S)
        tokens[name] = file.read_text()
        file.unlink()
    return tokens


@contextmanager
def _processes(
    count: int, folder: Path, tokens: dict[str, str], fates: dict[str, dict[int, str]]
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes of the sites; all are ended whatever happens."""
    running: list[subprocess.Popen[str]] = []
    try:
        for index in range(count):
            mine = dict(list(tokens.items())[index::count])
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.mortal_site"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[1],
            )
            running.append(process)
            sites = folder / "sites" / str(index)
            sites.mkdir(parents=True)
            here = {name: fates[name] for name in mine if name in fates}
            _tell(process, json.dumps({"folder": str(sites), "tokens": mine, "fates": here}))
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin is None:
        raise RuntimeError("a process of sites has no standard input")
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise RuntimeError("a process of sites has ended: its last words are above")
    heard: dict[str, Any] = json.loads(line)
    return heard


def _told(reports: Sequence[dict[str, Any]]) -> Told:
    """Put the reports together; every process must have been told the same sums."""
    sums: dict[int, list[bytes]] = {}
    for report in reports:
        for number, members in report["sums"].items():
            told = [bytes.fromhex(member) for member in members]
            if sums.setdefault(int(number), told) != told:
                raise RuntimeError(f"sites were told different sums of round {number}")
    return Told(sum(report["cpu_s"] for report in reports), reports[0]["scale"], sums)


def _submission(options: argparse.Namespace) -> Submission:
    values = {
        "rounds": options.rounds,
        "target_sites": options.sites,
        "max_attempts": 5,
    }
    job_toml = with_values((APP / "job.toml").read_text(), values)
    spec = VectorSpec((TensorSpec("flat", (options.dim,)),))
    return Submission(
        job=JobFile.parse(job_toml),
        job_toml=job_toml,
        vector_spec=spec.to_bytes(),
        app=appbundle.pack(APP),
        model=np.zeros(options.dim, "<f4").tobytes(),
    )


def _wait_connected(
    consortium: Consortium, processes: Sequence[subprocess.Popen[str]], count: int
) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    with operator_api(consortium.operator()) as api:
        while api.GetStatus(operator_pb2.GetStatusRequest()).sites_connected < count:
            consortium.check_alive()
            ended = any(process.poll() is not None for process in processes)
            if ended or time.monotonic() > deadline_s:
                raise RuntimeError("the simulated sites did not connect")
            time.sleep(0.5)


def _run_job(consortium: Consortium, submission: Submission) -> Any:
    job = operator_pb2.Job()
    with operator_api(consortium.operator()) as api:
        job_id = api.SubmitJob(requests_of(submission)).job_id
        for update in api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id)):
            job = update.job
    consortium.check_alive()
    if job.state != "finished":
        raise RuntimeError(f"the job {job.state}: {job.detail} {' | '.join(job.log)}")
    return job


def _check_model(
    consortium: Consortium, job: Any, folder: Path, options: argparse.Namespace, told: Told
) -> None:
    """Refuse to report a run whose model is not what the survivors' numbers make."""
    file = folder / "model.safetensors"
    request = operator_pb2.ExportModelRequest(job_id=job.job_id)
    with operator_api(consortium.operator()) as api:
        write_chunks(api.ExportModel(request), file)
    flat_D = load_file(file)["flat"]
    plan_value = round(constant_delta(1.0, options.dim) * told.scale)
    expected = 0.0
    for number in range(1, job.round + 1):
        values = [value_of(site, plan_value) for site in told.sums[number]]
        expected += sum(values) / len(values) / told.scale
    alike = flat_D.shape == (options.dim,) and (flat_D == flat_D[0]).all()
    if not alike or not np.isclose(flat_D[0], expected, rtol=1e-6, atol=0):
        raise RuntimeError(f"the model is {flat_D[:3]}, not {expected} everywhere: a wrong sum")


if __name__ == "__main__":
    main()
