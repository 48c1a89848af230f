"""Measure boosted trees over five banks against pooled XGBoost, with and without privacy.

    python -m benchmarks.trees [--seeds 3] [--data WHEEL] [--federation] [--json FILE]

Every sum goes through the real stages of a job, masks and network left out (`tree_consortium`), and
epsilon is the accountant's for the whole job. Each seed splits the records into banks and held-out
market anew. The peer, XGBoost, sees all banks' records pooled, without privacy. With
``--federation``, the private job runs once more for real: processes, mTLS, masks, ledgers.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.cli.output import table_of
from aggregator.cli.submission import prepare
from benchmarks import figures
from benchmarks.credit_federation import DATA, ROOT, example, train
from benchmarks.tree_consortium import run_job
from edge_node.data import from_table
from tidegate.jobfile import JobFile, Trees
from tidegate.tree_model import TreeModel

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
    split = example("split")
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


def rated(model: TreeModel, job: JobFile, market: Table) -> float:
    """Give a grown model's area under the ROC curve on a table."""
    if not isinstance(job.work, Trees):
        raise TypeError
    values_NF = np.stack([market[name] for name in job.work.features], axis=1)
    return _auc(market[job.work.label], model.predict_margin(values_NF))


def _federation(parts: Any) -> dict[str, float]:
    """Run the example as five real edge nodes and an aggregator would."""
    submission = prepare(JOBS)
    trained = train(submission, parts)
    model = TreeModel.from_tensors(trained.tensors)
    return {
        "auc": rated(model, submission.job, parts.market_test),
        "epsilon": trained.epsilon,
        "rounds": float(trained.rounds),
        "seconds": trained.seconds,
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
            f"auc_{name}": (auc := rated(grown.model, job, parts.market_test)),
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
    return float(example("ranking").auc(scores_N, labels_N))


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
