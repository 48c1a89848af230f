"""Name the plugs: which loader of site.toml opens what."""

from collections.abc import Callable, Mapping

from edge_node.data.arrays import open_npy, open_safetensors, open_torch
from edge_node.data.csv_file import open_csv
from edge_node.data.declared import Declared
from edge_node.data.function import open_function
from edge_node.data.hugging_face import open_hugging_face
from edge_node.data.images import open_images
from edge_node.data.npz import open_npz
from edge_node.data.parquet import open_parquet
from edge_node.data.source import Source
from edge_node.data.sql import open_sql

_PLUGS: Mapping[str, Callable[[Declared], Source]] = {
    "npz": open_npz,
    "npy": open_npy,
    "safetensors": open_safetensors,
    "torch": open_torch,
    "csv": open_csv,
    "parquet": open_parquet,
    "sql": open_sql,
    "images": open_images,
    "huggingface": open_hugging_face,
}


def open_source(declared: Declared) -> Source:
    """Open what a data set's table declares.

    Raises:
        UsageError: What is missing or wrong, where, and the mend.
    """
    return _PLUGS.get(declared.loader, open_function)(declared)
