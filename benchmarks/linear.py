"""Measure scikit-learn's logistic regression, trained over five banks, against its own fit.

    python -m benchmarks.linear [--seeds 3] [--data WHEEL] [--json FILE]

The example ``examples/credit-sklearn`` runs as a real federation at its epsilon; the peer is the
same estimator with the same scaling, fitted by scikit-learn on all banks' records pooled, without
privacy. Rated on the consortium's held-out market.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.cli.output import table_of
from aggregator.cli.submission import prepare
from benchmarks import figures
from benchmarks.credit_federation import DATA, ROOT, example, train

COLUMNS = ("#seed", "#scikit-learn, pooled", "#federated, DP", "#gap", "#epsilon", "#wall s")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many splits, seeds 0, 1, ...")
    parser.add_argument("--data", type=Path, default=DATA, help="the wheel of `make data`")
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
    split = example("split")
    table = split.read_table(options.data)
    runs = []
    for seed in range(options.seeds):
        out.print(f"seed {seed} ...")
        runs.append(_measure(split.split(table, seed)))
    mean = {key: statistics.fmean(run[key] for run in runs) for key in runs[0]}
    rows = [_row(str(seed), run) for seed, run in enumerate(runs)]
    out.print(table_of("AUC on the held-out market", COLUMNS, [*rows, _row("mean", mean)]))
    figures.write_json(options.json, {"runs": runs, "mean": mean})


def _measure(parts: Any) -> dict[str, float]:
    from sklearn.base import clone  # noqa: PLC0415 - of the extra sklearn

    task = example("task", "credit-sklearn").TASK
    names, market = list(task.scales), parts.market_test
    values = np.concatenate(
        [np.stack([bank.train[name] for name in names], axis=1) for bank in parts.banks]
    )
    labels = np.concatenate([bank.train[task.label] for bank in parts.banks])
    held_out = np.stack([market[name] for name in names], axis=1)
    trained = train(prepare(ROOT / "examples" / "credit-sklearn"), parts)
    federated = task.fitted(trained.tensors)
    scaler = federated.named_steps["scale"]
    pooled = clone(task.estimator).set_params(max_iter=1000)
    pooled.fit(scaler.transform(values), labels)
    auc = example("ranking").auc
    found = {
        "pooled": auc(pooled.decision_function(scaler.transform(held_out)), market[task.label]),
        "federated": auc(federated.decision_function(held_out), market[task.label]),
    }
    found["gap"] = found["pooled"] - found["federated"]
    return {**found, "epsilon": trained.epsilon, "seconds": trained.seconds}


def _row(name: str, run: dict[str, float]) -> tuple[str, ...]:
    aucs = (f"{run[key]:.4f}" for key in ("pooled", "federated", "gap"))
    return (name, *aucs, f"{run['epsilon']:.3f}", f"{run['seconds']:.0f}")


if __name__ == "__main__":
    main()
