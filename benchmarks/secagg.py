"""Measure what secure aggregation costs a site and the aggregator, beside Flower's SecAgg+.

    python -m benchmarks.secagg [--sites N --dim D] [--ours-only] [--dropped 0.05] [--json FILE]

Without ``--sites`` and ``--dim`` every size of the table is run. Both sides run in this process
without sockets, TLS or disk: see ``secagg_ours`` and ``secagg_flower`` for what is counted. CPU is
that of all threads; a client's figures are means over a few that stay to the end, and hold the way
of the vector from floats to packed bytes. As many sites as ``--dropped`` says go once their shares
are dealt, which is what costs the aggregator most. SecAgg+ runs whole, every client of it, so it is
left out where that takes more than minutes.
"""

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aggregator.cli.output import table_of
from benchmarks import figures
from benchmarks.secagg_ours import Cell, Exchange, Figures

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

SITES = (10, 50, 100, 300, 1000)
DIMS = (100_000, 1_000_000, 10_000_000)
MOST_PEER_SITES = 100
MOST_PEER_VALUES = 10**8
"""Above them (sites, and sites times integers) Flower's clients together take more than minutes."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, help="sites of one cell, 4 to 1000")
    parser.add_argument("--dim", type=int, help="integers of a vector, at least 1024")
    parser.add_argument("--dropped", type=float, default=0.05, help="share of sites that drop out")
    parser.add_argument("--ours-only", action="store_true", help="leave Flower out")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    if (options.sites is None) != (options.dim is None):
        parser.error("--sites and --dim go together: they name one cell")
    if options.sites is not None and not (4 <= options.sites <= 1000 and options.dim >= 1024):
        parser.error("needs 4 to 1000 sites and at least 1024 integers")
    if not 0 <= options.dropped <= 0.3:
        parser.error("--dropped is a share from 0 to 0.3: fewer than t sites cannot finish")
    return options


def main() -> None:
    options = parse()
    sizes = (
        [(options.sites, options.dim)] if options.sites else [(n, d) for n in SITES for d in DIMS]
    )
    results = [
        _run(Cell(sites, dim, options.dropped), ours_only=options.ours_only) for sites, dim in sizes
    ]
    columns = (
        "#sites",
        "#integers",
        "#client ms",
        "#masks GB/s",
        "#server ms",
        "#up beyond vector",
        "#down",
        "#SecAgg+ client ms",
        "#server ms",
        "#client: times ours",
    )
    out = figures.console()
    out.print(table_of("one secure sum", columns, [_row(result) for result in results]))
    result = results[0] if options.sites else {"cells": results}
    figures.write_json(options.json, result)


def _run(cell: Cell, *, ours_only: bool) -> dict[str, Any]:
    ours = Exchange(cell).run()
    result = {"sites": cell.sites, "dim": cell.dim, "dropped": cell.lost, **asdict(ours)}
    small = cell.sites <= MOST_PEER_SITES and cell.sites * cell.dim <= MOST_PEER_VALUES
    if not ours_only and small:
        from benchmarks import secagg_flower  # noqa: PLC0415 - reads the environment when imported

        peer: Figures = secagg_flower.run(cell)
        result["peer"] = asdict(peer)
        result["client_times_ours"] = peer.client_cpu_ms / ours.client_cpu_ms
    return result


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    peer = result.get("peer")
    beside = ("-",) * 3
    if peer:
        beside = (
            f"{peer['client_cpu_ms']:,.0f}",
            f"{peer['server_cpu_ms']:,.0f}",
            f"{result['client_times_ours']:.1f}",
        )
    return (
        f"{result['sites']:,}",
        f"{result['dim']:,}",
        f"{result['client_cpu_ms']:,.1f}",
        f"{result['mask_gb_per_s']:.1f}",
        f"{result['server_cpu_ms']:,.0f}",
        f"{(result['up_bytes'] - result['vector_bytes']) / 1000:,.1f} kB",
        f"{result['down_bytes'] / 1000:,.1f} kB",
        *beside,
    )


if __name__ == "__main__":
    main()
