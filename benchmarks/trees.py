"""Measure boosted trees over five banks against pooled XGBoost, with and without privacy.

    python -m benchmarks.trees [--seeds 3] [--data WHEEL] [--federation] [--json FILE]

Every sum goes through the real stages of a job, masks and network left out (`tree_consortium`), and
epsilon is the accountant's for the whole job. Each seed splits the records into banks and held-out
market anew. The peer, XGBoost, sees all banks' records pooled, without privacy. With
``--federation``, the private job runs once more for real: processes, mTLS, masks, ledgers.
"""

import argparse
import importlib.util
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from aggregator.cli.connection import operator_api
from aggregator.cli.consortium import Consortium, SitePlan
from aggregator.cli.models import write_chunks
from aggregator.cli.output import table_of
from aggregator.cli.progress import watch_live
from aggregator.cli.submission import prepare, requests_of
from benchmarks import figures
from benchmarks.scratch import scratch_folder
from benchmarks.tree_consortium import Grown, run_job
from edge_node.data import from_table
from privacy.planning import CohortRules
from tidegate.jobfile import JobFile, Trees
from tidegate.tree_model import TreeModel
from tidegate.v1 import operator_pb2

ROOT = Path(__file__).parents[1]
DATA = ROOT / ".venv" / "cache" / "whynot-0.12.0-py3-none-any.whl"
JOBS = ROOT / "examples" / "credit-trees"
JOB_FILES = {"eps": JOBS / "job.toml", "none": JOBS / "levels.toml"}
PEER = {"max_depth": 3, "learning_rate": 0.1, "min_child_weight": 10.0, "nthread": 1}
PEER_TREES = 250
COLUMNS = ("#seed", "#XGBoost, pooled", "#no DP", "#gap", "#DP", "#gap", "#epsilon", "#s", "#s, DP")

Table = dict[str, NDArray[np.float32]]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many splits, seeds 0, 1, ...")
    parser.add_argument("--data", type=Path, default=DATA, help="the wheel of `make data`")
    parser.add_argument("--federation", action="store_true", help="run seed 0 for real, too")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("needs at least one seed")
    return options


def main() -> None:
    options = parse()
    if not options.data.is_file():
        sys.exit(f"{options.data} does not exist: run `make data`, or name the wheel with --data")
    out = figures.console()
    jobs = {name: JobFile.parse(path.read_bytes(), path.name) for name, path in JOB_FILES.items()}
    split = _example("split")
    table = split.read_table(options.data)
    runs = []
    for seed in range(options.seeds):
        out.print(f"seed {seed} ...")
        runs.append(_measure(jobs, split.split(table, seed)))
    mean = {key: statistics.fmean(run[key] for run in runs) for key in runs[0]}
    rows = [_row(str(seed), run) for seed, run in enumerate(runs)]
    out.print(table_of("AUC on the held-out market", COLUMNS, [*rows, _row("mean", mean)]))
    found: dict[str, Any] = {"runs": runs, "mean": mean}
    if options.federation:
        found["federation"] = _federation(split.split(table, 0))
        out.print(
            "real federation, seed 0: AUC {auc:.4f}, epsilon at most {epsilon:.3f}, {rounds:.0f}"
            " rounds in {seconds:.1f} s".format(**found["federation"])
        )
    figures.write_json(options.json, found)


def rated(model: Grown, job: JobFile, market: Table) -> float:
    """Give a grown model's area under the ROC curve on a table."""
    if not isinstance(job.work, Trees):
        raise TypeError
    values_NF = np.stack([market[name] for name in job.work.features], axis=1)
    return _auc(market[job.work.label], model.model.predict_margin(values_NF))


def _federation(parts: Any) -> dict[str, float]:
    """Run the example as five real edge nodes and an aggregator would."""
    submission = prepare(JOBS)
    rules = CohortRules(colluders=1, min_survivors=4, members=len(parts.banks))
    with scratch_folder() as folder, Consortium(folder / "trees", lambda _: None) as consortium:
        sites = []
        for bank in parts.banks:
            site = folder / "trees" / "sites" / bank.name
            site.mkdir(mode=0o700, parents=True)
            np.savez(site / "shard.npz", **bank.train)
            sites.append(SitePlan.for_job(site, submission, rules))
        consortium.start_aggregator("trees")
        consortium.enrol(sites)
        consortium.seal(rules.colluders, rules.min_survivors)
        consortium.start_sites(sites)
        began = time.perf_counter()
        with operator_api(consortium.operator()) as api:
            job_id = api.SubmitJob(requests_of(submission)).job_id
            job = watch_live(api.WatchJob(operator_pb2.WatchJobRequest(job_id=job_id)), None)[-1]
            seconds = time.perf_counter() - began
            model = folder / "model.safetensors"
            write_chunks(api.ExportModel(operator_pb2.ExportModelRequest(job_id=job_id)), model)
        if job.state != "finished":
            raise RuntimeError(f"the job is {job.state}: {job.detail}")
        grown = Grown(TreeModel.from_tensors(load_file(model)), 0.0, seconds)
        return {
            "auc": rated(grown, submission.job, parts.market_test),
            "epsilon": max(site.epsilon for site in job.sites),
            "rounds": float(job.round),
            "seconds": seconds,
        }


def _measure(jobs: dict[str, JobFile], parts: Any) -> dict[str, float]:
    banks = [bank.train for bank in parts.banks]
    datasets = [
        from_table("credit", "credit", tuple(bank), np.stack(list(bank.values()), axis=1))
        for bank in banks
    ]
    run = {"xgboost": _peer(banks, parts.market_test)}
    for name, job in jobs.items():
        grown = run_job(job, datasets)
        run |= {
            f"auc_{name}": (auc := rated(grown, job, parts.market_test)),
            f"gap_{name}": run["xgboost"] - auc,
            f"epsilon_{name}": grown.epsilon,
            f"seconds_{name}": grown.seconds,
        }
    return run


def _peer(banks: list[Table], market: Table) -> float:
    """Rate XGBoost on all banks' records pooled."""
    from xgboost import XGBClassifier  # noqa: PLC0415 - of the dev extra

    names = [name for name in market if name != "default"]
    values = np.concatenate([np.stack([bank[name] for name in names], axis=1) for bank in banks])
    labels = np.concatenate([bank["default"] for bank in banks])
    peer = XGBClassifier(n_estimators=PEER_TREES, tree_method="hist", **PEER).fit(values, labels)
    held_out = np.stack([market[name] for name in names], axis=1)
    return _auc(market["default"], peer.predict(held_out, output_margin=True))


def _auc(labels_N: NDArray[np.float32], scores_N: NDArray[np.float32]) -> float:
    return float(_example("ranking").auc(scores_N, labels_N))


def _example(name: str) -> Any:
    """Import a file of the credit example, which is an app and no package."""
    path = ROOT / "examples" / "credit" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"credit_{name}", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _row(name: str, run: dict[str, float]) -> tuple[str, ...]:
    quality = ("xgboost", "auc_none", "gap_none", "auc_eps", "gap_eps")
    return (
        name,
        *(f"{run[key]:.4f}" for key in quality),
        f"{run['epsilon_eps']:.3f}",
        f"{run['seconds_none']:.1f}",
        f"{run['seconds_eps']:.1f}",
    )


if __name__ == "__main__":
    main()
