"""Run a job on the five banks' records as a real federation: processes, mTLS, masks, ledgers."""

import importlib.util
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium, SitePlan
from aggregator.cli.models import write_chunks
from aggregator.cli.progress import watch_live
from aggregator.cli.submission import Submission, requests_of
from benchmarks.scratch import scratch_folder
from privacy.planning import CohortRules
from tidegate.v1 import operator_pb2

ROOT = Path(__file__).parents[1]
DATA = ROOT / ".venv" / "cache" / "whynot-0.12.0-py3-none-any.whl"


@dataclass(frozen=True)
class Trained:
    """A finished job.

    Attributes:
        tensors: Of the released model, by name.
        epsilon: The largest that a site's own ledger shows.
        rounds: How many there were.
        seconds: From submission to release.
    """

    tensors: Mapping[str, NDArray[np.float32]] = field(repr=False)
    epsilon: float
    rounds: int
    seconds: float


def example(name: str, folder: str = "credit") -> Any:
    """Import a file of an example, which is an app and no package."""
    path = ROOT / "examples" / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{folder.replace('-', '_')}_{name}", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))  # for what the file imports beside it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def train(submission: Submission, parts: Any) -> Trained:
    """Run a job to its end with one real edge node a bank.

    Args:
        submission: As `prepare` made it.
        parts: A split of the credit records.

    Raises:
        RuntimeError: The job did not finish; says why.
    """
    rules = CohortRules(colluders=1, min_survivors=4, members=len(parts.banks))
    with scratch_folder() as folder, Consortium(folder / "banks", lambda _: None) as consortium:
        sites = []
        for bank in parts.banks:
            site = folder / "banks" / "sites" / bank.name
            site.mkdir(mode=0o700, parents=True)
            np.savez(site / "shard.npz", **bank.train)
            sites.append(SitePlan.for_job(site, submission, rules))
        consortium.start_aggregator("banks")
        consortium.enrol(sites)
        consortium.seal(rules.colluders, rules.min_survivors)
        consortium.start_sites(sites)
        began = time.perf_counter()
        with operator_api(consortium.operator()) as api:
            job_id = api.SubmitJob(requests_of(submission)).job_id
            job = watch_live(api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id)), None)[-1]
            seconds = time.perf_counter() - began
            if job.state != "finished":
                raise RuntimeError(f"the job is {job.state}: {job.detail}")
            model = folder / "model.safetensors"
            write_chunks(api.ExportModel(operator_pb2.ExportModelRequest(job_id=job_id)), model)
        spent = max(site.epsilon for site in job.sites)
        return Trained(load_file(model), spent, job.round, seconds)
