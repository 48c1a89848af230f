"""A small market of customers in the real layout: a zip with a CSV, inside a wheel."""

import hashlib
import importlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[2] / "examples" / "credit"
MODULES = ("task", "published", "split", "ranking", "client_app", "server_app")


def load(name):
    """Import an example module the way Flower and the demo do: its folder on the path."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def forget():
    """Drop the example's modules, whose plain names another app may bear."""
    for name in MODULES:
        sys.modules.pop(name, None)


def csv_text(rows, seed=0):
    """Make customers with NA, sentinel codes, and a mix of all five segments."""
    rng = np.random.default_rng(seed)
    late = rng.choice([0, 0, 0, 1, 2, 98], size=(rows, 3))
    late[:, 1:] = np.where(late[:, :1] == 98, 98, np.minimum(late[:, 1:], 2))
    lines = ["," + ",".join(load("split").HEADER)]
    for i in range(rows):
        income = "NA" if rng.random() < 0.2 else str(int(rng.integers(0, 20_000)))
        dependents = "NA" if rng.random() < 0.05 else str(int(rng.integers(0, 6)))
        label = int(rng.random() < 0.1 + 0.4 * (late[i].max() > 0))
        fields = [i + 1, label, f"{rng.gamma(0.5):.9f}", rng.integers(18, 100), late[i, 0]]
        fields += [f"{rng.gamma(0.5):.6f}", income, rng.integers(0, 30), late[i, 2]]
        fields += [rng.integers(0, 3), late[i, 1], dependents]
        lines.append(",".join(map(str, fields)))
    return "\n".join(lines) + "\n"


def make_wheel(folder, text, archive="whynot/simulators/credit/credit_data.zip"):
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("credit_data.csv", text)
    with zipfile.ZipFile(outer, "w") as zipped:
        zipped.writestr(archive, inner.getvalue())
    path = folder / "small.whl"
    path.write_bytes(outer.getvalue())
    return path, hashlib.sha256(outer.getvalue()).hexdigest()
