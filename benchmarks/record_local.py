"""Measure local DP steps on the five banks: mode ``record-local`` against all data pooled.

    python -m benchmarks.record_local [--seeds 3] [--data WHEEL] [--json FILE]

Each seed draws the split into five banks and the first model anew and runs the example's
``record-local.toml`` as a real federation: one edge node a bank, mTLS, masks and ledgers. The named
baseline is one model on all banks' records, without privacy; both are rated on the held-out market.
Epsilon is what the banks' own ledgers show, at the job's delta.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np
import torch

from aggregator.cli import baselines
from aggregator.cli.output import table_of
from aggregator.cli.submission import prepare
from benchmarks import figures
from benchmarks.credit_federation import DATA, ROOT, example, train
from benchmarks.job_text import with_values

APP = ROOT / "examples" / "credit"
JOB = APP / "record-local.toml"
COLUMNS = ("#seed", "#pooled", "#federated", "#gap", "#epsilon", "#rounds", "#seconds")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many runs, seeds 0, 1, ...")
    parser.add_argument("--data", type=Path, default=DATA, help="the wheel of `make data`")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("needs at least one seed")
    return options


def measure(seed: int, data: Path) -> dict[str, float]:
    """Run one seed and rate both models."""
    split, task = example("split"), example("task")
    parts = split.split(split.read_table(data), seed)
    submission = prepare(APP, with_values(JOB.read_text(), {"seed": seed}))
    trained = train(submission, parts)
    arrays = {name: torch.from_numpy(array) for name, array in trained.tensors.items()}
    federated = baselines.auc(task, baselines.load_flat(task, arrays), parts.market_test)
    tables = [bank.train for bank in parts.banks]
    pooled = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    auc_pooled = baselines.auc(task, baselines.train_alone(task, pooled, seed), parts.market_test)
    return {
        "auc_pooled": auc_pooled,
        "auc_federated": federated,
        "gap": auc_pooled - federated,
        "epsilon": trained.epsilon,
        "rounds": trained.rounds,
        "seconds": trained.seconds,
    }


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    out = figures.console()
    runs = []
    for seed in range(options.seeds):
        runs.append(measure(seed, options.data))
        out.print(f"seed {seed}: {runs[-1]}", highlight=False)
    mean = {key: statistics.fmean(run[key] for run in runs) for key in runs[0]}
    rows = [_row(str(seed), run) for seed, run in enumerate(runs)]
    out.print(table_of("AUC on the consortium's test data", COLUMNS, [*rows, _row("mean", mean)]))
    figures.write_json(options.json, {"runs": runs, "mean": mean})


def _row(name: str, run: dict[str, float]) -> tuple[str, ...]:
    quality = (f"{run[key]:.4f}" for key in ("auc_pooled", "auc_federated", "gap"))
    return name, *quality, f"{run['epsilon']:.4f}", f"{run['rounds']:.0f}", f"{run['seconds']:.0f}"


if __name__ == "__main__":
    main()
