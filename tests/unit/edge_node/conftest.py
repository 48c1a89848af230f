"""A simulated consortium that has begun its job."""

import pytest

from tests.support.site_simulation import NAMES, SimAggregator


@pytest.fixture
def market():
    aggregator = SimAggregator(NAMES)
    aggregator.connect()
    aggregator.offer()
    return aggregator
