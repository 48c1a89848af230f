"""Read column statistics that the banks published with noise and a charge, if the app ships any.

``tidegate stats run --scaling scaling.toml`` writes the file; put beside this one, it goes into the
app's digest, which sites review. Without it everything stays with the task's own constants.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).with_name("scaling.toml")


def read_scaling(file: Path = FILE) -> Mapping[str, Mapping[str, float]]:
    """Give low, high, mean and std of each column that the file names; none without the file."""
    if not file.is_file():
        return {}
    columns: Mapping[str, Mapping[str, float]] = tomllib.loads(file.read_text())["columns"]
    return columns
