"""``tidegate demo``: five banks, five edge nodes, one aggregator; a real job on real records."""

import importlib
import json
import shutil
import sys
import time
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium, SitePlan, interrupted_by_signals
from aggregator.cli.job_facts import JobFacts, fetch_facts
from aggregator.cli.models import write_chunks
from aggregator.cli.output import data_size, table_of
from aggregator.cli.progress import watch_live
from aggregator.cli.submission import Submission, prepare, requests_of
from privacy.errors import PeerError, Reason, UsageError
from privacy.planning import CohortRules
from tidegate.jobfile import JobFile, RecordPrivacy
from tidegate.requests import JobStatus
from tidegate.v1 import operator_pb2

EXAMPLE = Path(__file__).parents[2] / "examples" / "credit"
MARKER = ".tidegate-demo"
COLLUDERS = 1
MIN_SURVIVORS = 4
FP32_BYTES = 4
_BY_SITE = (
    "sites",
    "records",
    "auc_local",
    "epsilon",
    "bytes_up_by_site",
    "bytes_down_by_site",
    "train_s",
    "exchange_s",
    "wait_s",
)


@dataclass(frozen=True)
class DemoOptions:
    """What the command line chose."""

    data: Path
    folder: Path
    example: Path
    seed: int
    rounds: int | None
    json_file: Path | None
    open_browser: bool


def demo(
    data: Annotated[Path, typer.Option(help="The wheel with the credit data (`make data`).")],
    folder: Annotated[
        Path, typer.Option(help="Folder for everything the demo makes; emptied first.")
    ] = Path("tidegate-demo"),
    example: Annotated[Path, typer.Option(help="The example app.")] = EXAMPLE,
    seed: Annotated[int, typer.Option(help="Seed of the split and the first model.")] = 0,
    rounds: Annotated[int | None, typer.Option(help="Fewer rounds than job.toml says.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result table as JSON here too.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the report in a browser.")] = True,
) -> None:
    """Train a real federation of five banks on this machine and report what it gained and cost."""
    options = DemoOptions(
        data=data,
        folder=folder.absolute(),
        example=example.absolute(),
        seed=seed,
        rounds=rounds,
        json_file=json_file,
        open_browser=browser,
    )
    console = Console()
    with interrupted_by_signals():
        result = run(options, console)
    _show(result, options, console)


def run(options: DemoOptions, console: Console) -> dict[str, Any]:
    """Run the whole demo and return its result table.

    Raises:
        UsageError: A step failed; every process is ended first.
    """
    started_s = time.monotonic()
    split, task = _example_modules(options.example)
    if options.json_file is not None and not options.json_file.absolute().parent.is_dir():
        raise UsageError(f"--json {options.json_file}: there is no such folder")
    _empty(options.folder)
    submission = prepare(options.example, _job_toml(options))
    job = JobFile.parse(submission.job_toml)
    if not isinstance(job.privacy, RecordPrivacy):
        raise UsageError(f"{options.example}: the demo runs record-distributed jobs")
    console.print("Splitting 150,000 real credit records into five banks by customer segment ...")
    try:
        parts = split.split(split.read_table(options.data), options.seed)
    except split.DataError as error:
        raise UsageError(f"--data: {error}") from error
    rules = CohortRules(COLLUDERS, MIN_SURVIVORS, len(parts.banks))
    sites = []
    for bank in parts.banks:
        site = SitePlan.for_job(options.folder / "sites" / bank.name, submission, rules)
        site.folder.mkdir(parents=True, mode=0o700)
        sites.append(site)
        split.write_table(site.folder / "shard.npz", bank.train)

    with Consortium(options.folder, console.print) as consortium:
        console.print("Starting the aggregator; five banks enrol, each by a token of its own ...")
        consortium.start_aggregator("credit-banks")
        consortium.enrol(sites)
        manifest = consortium.seal(COLLUDERS, MIN_SURVIVORS)
        console.print(
            f"Manifest sealed: c={COLLUDERS}, N_min={MIN_SURVIVORS}, sha256:{manifest.hash().hex()}"
        )
        consortium.start_sites(sites)
        ready_s = time.monotonic()
        history = _train(consortium, submission, console)
        model_file = options.folder / "model.safetensors"
        with operator_api(consortium.operator()) as api:
            request = operator_pb2.ExportModelRequest(job_id=history[-1].job_id)
            write_chunks(api.ExportModel(request), model_file)
            facts = fetch_facts(api, history[-1].job_id)
    trained_s = time.monotonic()
    console.print("Training the comparison models (only this harness reads all shards) ...")
    return _measure(
        options,
        facts=facts,
        privacy=job.privacy,
        submission=submission,
        task=task,
        parts=parts,
        clock=(started_s, ready_s, trained_s),
    )


def _train(consortium: Consortium, submission: Submission, console: Console) -> list[JobStatus]:
    """Submit the job as the command line does and watch it to its end."""
    with operator_api(consortium.operator()) as api:
        job_id = api.SubmitJob(requests_of(submission)).job_id
        console.print(f"Job {job_id} submitted through the operator API.")
        request = operator_pb2.WatchJobRequest(job_id=job_id)
        updates = api.WatchJob(request)
        with consortium.guarded(updates.cancel):
            history = watch_live(updates, console)
    if history[-1].state != "finished":
        raise PeerError(Reason.STOPPED, f"job {job_id} {history[-1].state}: {history[-1].detail}")
    return history


def _measure(
    options: DemoOptions,
    *,
    facts: JobFacts,
    privacy: RecordPrivacy,
    submission: Submission,
    task: ModuleType,
    parts: Any,
    clock: tuple[float, float, float],
) -> dict[str, Any]:
    """Rate the released model beside the comparison models and write the report."""
    import torch  # noqa: PLC0415 - heavy, and needed by this command alone
    from safetensors.torch import load_file  # noqa: PLC0415

    from aggregator.cli import baselines, demo_report  # noqa: PLC0415

    torch.set_num_threads(1)  # two threads that contend are slower than one
    job = facts.status
    model_file = options.folder / "model.safetensors"
    released = baselines.load_flat(task, load_file(model_file))
    shards = {bank.name: bank.train for bank in parts.banks}
    comparison = baselines.compare(task, shards, parts.market_test, options.seed)
    started_s, ready_s, trained_s = clock
    fp32 = job.rounds * submission.parameters * FP32_BYTES
    result: dict[str, Any] = {
        "auc_pooled": comparison.pooled,
        "auc_federated": baselines.auc(task, released, parts.market_test),
        "auc_local": list(comparison.alone),
        "epsilon": [site.epsilon for site in job.sites],
        "delta_dp": privacy.delta_dp,
        "unit": privacy.unit.kind,
        "sites": [site.site_id for site in job.sites],
        "records": [len(table[task.TARGET]) for table in shards.values()],
        "bytes_up": sum(site.bytes_up for site in job.sites),
        "bytes_down": sum(site.bytes_down for site in job.sites),
        "bytes_up_fp32": fp32 * len(job.sites),
        "bytes_down_fp32": fp32 * len(job.sites),
        "bytes_up_by_site": [site.bytes_up for site in job.sites],
        "bytes_down_by_site": [site.bytes_down for site in job.sites],
        "dropped": [site.dropped for site in job.sites],
        "train_s": [site.train_s for site in job.sites],
        "exchange_s": [site.exchange_s for site in job.sites],
        "wait_s": [site.wait_s for site in job.sites],
        "rounds": job.round,
        "rounds_per_s": job.round / job.elapsed_s,
        "attempts_aborted": job.attempts_aborted,
        "parameters": submission.parameters,
        "seed": options.seed,
        "provenance": dict(facts.provenance),
        "setup_s": ready_s - started_s,
        "job_s": trained_s - ready_s,
        "wall_s": time.monotonic() - started_s,
    }
    result["report"] = str(options.folder / "report.html")
    kept = options.folder / "aggregator" / "kept"
    demo_report.write(Path(result["report"]), facts, result, kept)
    return result


def _show(result: dict[str, Any], options: DemoOptions, console: Console) -> None:
    rows: list[tuple[str, ...]] = [
        (
            f"{site} alone",
            f"{records:,}",
            f"{alone:.4f}",
            f"{epsilon:.3f}",
            data_size(up),
            data_size(down),
            f"{train:.0f}/{exchange:.0f}/{wait:.0f}",
        )
        for site, records, alone, epsilon, up, down, train, exchange, wait in zip(
            *(result[key] for key in _BY_SITE), strict=True
        )
    ]
    count, records = len(result["sites"]), f"{sum(result['records']):,}"
    sent = [data_size(result[key] / count) for key in ("bytes_up", "bytes_down")]
    fp32 = [data_size(result[key] / count) for key in ("bytes_up_fp32", "bytes_down_fp32")]
    spent = f"{max(result['epsilon']):.3f}"
    rows.append(("all, federated", records, f"{result['auc_federated']:.4f}", spent, *sent, ""))
    rows.append(("all, pooled", records, f"{result['auc_pooled']:.4f}", "-", "-", "-", ""))
    rows.append(("fp32 sync", "", "", "-", *fp32, ""))
    columns = ("model", "#records", "#AUC", "#ε spent", "#up", "#down", "#time, s")
    console.print(table_of("Five banks: AUC on the consortium's test data", columns, rows))
    console.print(
        f"ε per {result['unit']} at δ={result['delta_dp']:g}; bytes of one site in the federation;"
        " time: compute/exposed communication/idle; alone and pooled are trained without privacy;"
        " fp32 sync is the bare fp32 payload of the same number of steps",
        style="dim",
    )
    console.print(
        f"{result['rounds']} rounds at {result['rounds_per_s']:.1f} rounds/s;"
        f" set-up {result['setup_s']:.0f} s, job {result['job_s']:.0f} s,"
        f" in all {result['wall_s']:.0f} s"
    )
    console.print(f"report {result['report']}", soft_wrap=True)
    console.print(f"model  {options.folder / 'model.safetensors'}", soft_wrap=True)
    if options.json_file is not None:
        options.json_file.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")
    if options.open_browser:
        webbrowser.open(Path(result["report"]).as_uri())


def _job_toml(options: DemoOptions) -> bytes:
    """Return the example's job file, with the seed and the number of rounds asked for."""
    text = (options.example / "job.toml").read_text()
    lines = []
    for line in text.splitlines():
        key = line.split("=")[0].strip()
        if key == "seed":
            lines.append(f"seed = {options.seed}")
        elif key == "rounds" and options.rounds is not None:
            lines.append(f"rounds = {options.rounds}")
        else:
            lines.append(line)
    return ("\n".join(lines) + "\n").encode()


def _example_modules(example: Path) -> tuple[Any, ModuleType]:
    """Import the example's split and task; they are this harness's, not the aggregator's."""
    if not (example / "job.toml").is_file():
        raise UsageError(f"{example} holds no job.toml: name the example app with --example")
    sys.path.insert(0, str(example))
    try:
        return importlib.import_module("split"), importlib.import_module("task")
    finally:
        sys.path.remove(str(example))


def _empty(folder: Path) -> None:
    """Make the demo's folder anew; refuse to remove one that the demo did not make."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).is_file():
            raise UsageError(f"{folder} is not empty and not the demo's: name another --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    (folder / MARKER).touch()
