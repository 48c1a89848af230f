"""Lay out the sums of an evaluation job: one that counts the records, then the task's metrics.

Each of the k metric blocks of a record has norm at most 1 (`privacy.metrics`), and the count is 1,
so a record moves the vector by at most sqrt(1 + k) in L2: public, one release, one charge.
"""

import math

from privacy.metrics import MetricLayout
from privacy.spec import TensorSpec, VectorSpec

RECORDS = "records"
METRICS = "metrics"


def evaluation_spec(metrics: MetricLayout) -> VectorSpec:
    """Describe the summed vector."""
    return VectorSpec((TensorSpec(RECORDS, (1,)), TensorSpec(METRICS, (metrics.length,))))


def evaluation_norm(metrics: MetricLayout) -> float:
    """Give the most that one record moves the vector, in L2."""
    return math.sqrt(1 + len(metrics.metrics))
