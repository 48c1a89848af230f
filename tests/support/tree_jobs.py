"""Small trees jobs and tables whose best trees are known."""

import numpy as np

from edge_node.data import from_table
from tidegate.jobfile import JobFile

NAMES = ("y", "a", "b", "c")
TOML = """
[job]
name = "trees"
dataset = "credit"
[trees]
label = "y"
{trees}
[privacy]
{privacy}
[round]
target_sites = 5
deadline_s = 20.0
[[columns]]
name = "y"
levels = 2
[[columns]]
name = "a"
levels = 6
[[columns]]
name = "b"
low = 0.0
high = 7.0
dtype = "int64"
[[columns]]
name = "c"
levels = 5
"""
NO_DP = 'mode = "none"\nmax_records = 2000'
DP = 'mode = "record-distributed"\nepsilon = 8.0\ndelta_dp = 1e-6\nmax_records = 2000'
LEVELS = "trees = 4\ndepth = 3\nbins = 16"
TABLES = 'structure = "tables"\ntrees = 6\ndepth = 3\nbins = 16'


def trees_toml(trees=LEVELS, privacy=NO_DP):
    return TOML.format(trees=trees, privacy=privacy)


def trees_job(trees=LEVELS, privacy=NO_DP):
    return JobFile.parse(trees_toml(trees, privacy).encode())


def table(rows, seed=0):
    """Give rows (y, a, b, c), a and c with gaps; y depends on a, and on c where b is large."""
    random = np.random.default_rng(seed)
    values = random.integers(0, [6, 8, 5], (rows, 3)).astype(np.float32)
    values[random.random(values.shape) < [0.15, 0.0, 0.15]] = np.nan
    known = np.nan_to_num(values)
    score = known[:, 0] - 2 + 0.5 * (known[:, 1] > 4) * known[:, 2] - 2 * np.isnan(values[:, 2])
    labels = random.random(rows) < 1 / (1 + np.exp(-score))
    return np.column_stack([labels, values]).astype(np.float32)


def sites(rows_NW, count=5):
    """Deal rows out to sites."""
    return [
        from_table("credit", "credit", NAMES, rows_NW[site::count].copy()) for site in range(count)
    ]
