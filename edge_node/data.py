"""Load the data set a site's own configuration names: the site's data plug.

The job only says which declared data set it wants; where the rows lie and how they are read is the
site's business alone. Values are float32, NaN where one is missing. Nothing is unpickled.

Shapes: N = rows of the data set, C = columns asked for, S = rows taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, repr=False)
class Dataset:
    """A site's rows, in memory.

    Attributes:
        name: The name jobs ask for.
        dataset_id: The administrator's id that the privacy ledger charges.
        columns: Names, in the order of the table.
        table_NC: float32, shape (N, all columns).
    """

    name: str
    dataset_id: str
    columns: tuple[str, ...]
    table_NC: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.table_NC)

    def take(self, indices_S: NDArray[np.int64], columns: Sequence[str]) -> NDArray[np.float32]:
        """Copy some rows of some columns, shape (S, C)."""
        raise NotImplementedError


def load_dataset(name: str, table: Mapping[str, object], folder: Path) -> Dataset:
    """Load the data set that one ``[datasets.NAME]`` table of the site's configuration declares.

    Args:
        name: NAME.
        table: Keys ``loader`` (npz, csv or "module:function"), ``dataset_id``, ``path``, optional
            ``columns`` (default: all) and, for a Python loader, ``options``.
        folder: What a relative ``path`` is relative to.

    Raises:
        UsageError: What is missing or wrong, where, and the mend.
    """
    raise NotImplementedError
