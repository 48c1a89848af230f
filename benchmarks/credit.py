"""Measure what the federation gains on real credit records: ``tidegate demo`` with several seeds.

    python -m benchmarks.credit [--seeds 3] [--data WHEEL] [--json FILE]

Each seed draws the split into five banks and the first model anew. Named baselines, all rated on
the same held-out market: one model on all banks' records pooled, without privacy; and each bank's
own model, without privacy, trained until it stops improving.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from aggregator.cli.output import table_of
from benchmarks import figures
from benchmarks.scratch import scratch_folder

DATA = Path(".venv") / "cache" / "whynot-0.12.0-py3-none-any.whl"
STOP_LIMIT_S = 60.0
COLUMNS = (
    "#seed",
    "#pooled",
    "#federated",
    "#banks alone, mean",
    "#best bank",
    "#gap to pooled",
    "#gain over mean",
    "#epsilon",
    "#rounds/s",
    "#wall s",
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many runs, seeds 0, 1, ...")
    parser.add_argument("--data", type=Path, default=DATA, help="the wheel of `make data`")
    parser.add_argument("--rounds", type=int, help="fewer rounds than job.toml says")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("needs at least one seed")
    return options


def summary(run: dict[str, Any]) -> dict[str, float]:
    """Give the figures that are compared between runs of the demo.

    Args:
        run: What ``tidegate demo --json`` wrote.
    """
    mean_alone = statistics.fmean(run["auc_local"])
    return {
        "auc_pooled": run["auc_pooled"],
        "auc_federated": run["auc_federated"],
        "auc_local_mean": mean_alone,
        "auc_local_best": max(run["auc_local"]),
        "gap_to_pooled": run["auc_pooled"] - run["auc_federated"],
        "gain_over_mean": run["auc_federated"] - mean_alone,
        "epsilon": max(run["epsilon"]),
        "rounds_per_s": run["rounds_per_s"],
        "wall_s": run["wall_s"],
    }


def spread(runs: list[dict[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Give mean and standard deviation (of the sample) of every figure."""
    columns = {key: [run[key] for run in runs] for key in runs[0]}
    mean = {key: statistics.fmean(values) for key, values in columns.items()}
    several = len(runs) > 1
    sd = {key: statistics.stdev(values) if several else 0.0 for key, values in columns.items()}
    return mean, sd


def main() -> None:
    options = parse()
    if not options.data.is_file():
        sys.exit(f"{options.data} does not exist: run `make data`, or name the wheel with --data")
    out = figures.console()
    runs: list[dict[str, Any]] = []
    with scratch_folder() as scratch:
        try:
            for seed in range(options.seeds):
                out.print(f"tidegate demo --seed {seed} ...")
                runs.append(_demo(options, seed, scratch))
        except KeyboardInterrupt:
            sys.exit(130)
    found = [summary(run) for run in runs]
    mean, sd = spread(found)
    rows = [_row(str(seed), figure) for seed, figure in enumerate(found)]
    rows += [_row("mean", mean), _row("sd", sd)]
    out.print(table_of("AUC on the consortium's test data", COLUMNS, rows))
    for site in range(len(runs[0]["sites"])):
        alone = ", ".join(f"{run['auc_local'][site]:.4f}" for run in runs)
        out.print(f"{runs[0]['sites'][site]} alone: {alone}", highlight=False)
    figures.write_json(options.json, {"runs": runs, "mean": mean, "sd": sd})


def _demo(options: argparse.Namespace, seed: int, scratch: Path) -> dict[str, Any]:
    """Run the demo in a process of its own; end it, and what it started, on Ctrl-C."""
    result = scratch / f"{seed}.json"
    program = [
        str(Path(sys.executable).with_name("tidegate")),
        "demo",
        f"--data={options.data.absolute()}",
        f"--folder={scratch / str(seed)}",
        f"--seed={seed}",
        f"--json={result}",
        "--no-browser",
        *([] if options.rounds is None else [f"--rounds={options.rounds}"]),
    ]
    log = scratch / f"{seed}.log"
    with log.open("wb") as file, subprocess.Popen(program, stdout=file, stderr=file) as process:
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait(STOP_LIMIT_S)
            raise
    if status:
        raise RuntimeError(f"the demo failed with status {status}: {log.read_text()[-1000:]}")
    run: dict[str, Any] = json.loads(result.read_text())
    return run


def _row(name: str, figure: dict[str, float]) -> tuple[str, ...]:
    quality = ("auc_pooled", "auc_federated", "auc_local_mean", "auc_local_best")
    differences = ("gap_to_pooled", "gain_over_mean")
    return (
        name,
        *(f"{figure[key]:.4f}" for key in quality),
        *(f"{figure[key]:.4f}" for key in differences),
        f"{figure['epsilon']:.3f}",
        f"{figure['rounds_per_s']:.1f}",
        f"{figure['wall_s']:.0f}",
    )


if __name__ == "__main__":
    main()
