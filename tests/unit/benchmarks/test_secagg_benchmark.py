"""Both sides of the secure aggregation benchmark run whole and check what they summed."""

import numpy as np
import pytest

from benchmarks import secagg, secagg_flower
from benchmarks.secagg_ours import Cell, Exchange
from privacy.secagg import masking

SMALL = Cell(sites=6, dim=2048, dropped=0.2)


def test_an_exchange_sums_exactly_and_counts_both_sides():
    figures = Exchange(SMALL).run()
    assert figures.vector_bytes == 4 * SMALL.dim
    assert figures.up_bytes > figures.vector_bytes
    assert min(figures.client_cpu_ms, figures.server_cpu_ms, figures.down_bytes) > 0
    assert figures.client_vector_ms < figures.client_cpu_ms


def test_a_wrong_sum_is_not_measured(monkeypatch):
    exchange = Exchange(SMALL)
    right = masking.mask

    def wrong(update, terms, bits):
        masked = right(update, terms, bits)
        np.add(masked.values_d, 1, out=masked.values_d)
        return masked

    monkeypatch.setattr(masking, "mask", wrong)
    with pytest.raises(RuntimeError, match="not that of the survivors"):
        exchange.run()


def test_flowers_workflow_runs_whole_beside_it():
    figures = secagg_flower.run(SMALL)
    assert figures.vector_bytes == 8 * SMALL.dim < figures.up_bytes
    assert min(figures.client_cpu_ms, figures.server_cpu_ms, figures.down_bytes) > 0


@pytest.mark.parametrize(
    "arguments",
    [["--sites", "10"], ["--sites", "3", "--dim", "5000"], ["--dropped", "0.5"], ["--dim", "9999"]],
)
def test_cells_that_cannot_be_are_refused(arguments):
    with pytest.raises(SystemExit):
        secagg.parse(arguments)
