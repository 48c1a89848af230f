"""Read ``[trees]``: what is grown, and the public bins of each feature."""

import re

import numpy as np

from privacy.errors import UsageError
from tidegate.jobfile.work_kinds import LEVELS, TABLES, Trees
from tidegate.schema import Column, Schema
from tidegate.toml_table import Span, Table
from tidegate.tree_bins import MAX_BINS, Edges, as_edges, equal_edges, log_edges

MAX_FEATURES = 256
MAX_DEPTH = 10
MAX_CELLS = 2**22

_KEYS = (
    "label",
    "features",
    "log_features",
    "edges",
    "bins",
    "structure",
    "features_per_tree",
    "trees",
    "depth",
    "learning_rate",
    "l2",
    "min_weight",
    "min_gain",
    "seed",
)
_POSITIVE = Span(0, 1e9, open_low=True)
_NOT_NEGATIVE = Span(0, 1e9)
_EDGE = Span(-3e38, 3e38)
_MOST_TOGETHER = 3


def read_trees(top: Table, schema: Schema | None) -> Trees:
    """Read the table.

    Args:
        top: The job file.
        schema: Its ``[[columns]]``.

    Raises:
        UsageError: Which key, and what it may be.
    """
    table = top.table("trees", _KEYS)
    if schema is None:
        raise UsageError(f"{table.where} needs [[columns]]: the label and each feature")
    label = table.choice("label", schema.names)
    features = _read_features(table, schema, label)
    structure = table.choice("structure", (LEVELS, TABLES), LEVELS)
    edges = _read_edges(table, schema, features)
    few = min(len(features), _MOST_TOGETHER if structure == TABLES else MAX_FEATURES)
    trees = Trees(
        label=label,
        features=features,
        edges=edges,
        structure=structure,
        features_per_tree=table.whole(
            "features_per_tree", Span(1, few), 1 if structure == TABLES else len(features)
        ),
        trees=table.whole("trees", Span(1, 10_000)),
        depth=table.whole("depth", Span(1, MAX_DEPTH)),
        learning_rate=table.number("learning_rate", _POSITIVE, 0.3),
        l2=table.number("l2", _NOT_NEGATIVE, 1.0),
        min_weight=table.number("min_weight", _NOT_NEGATIVE, 1.0),
        min_gain=table.number("min_gain", _NOT_NEGATIVE, 0.0),
        seed=table.whole("seed", Span(0, 2**53), 0),
    )
    _check_size(table, trees)
    return trees


def _read_features(table: Table, schema: Schema, label: str) -> tuple[str, ...]:
    names = re.compile("|".join(map(re.escape, schema.names)))
    rule = "the name of one of the [[columns]]"
    features = table.texts("features", names, rule, MAX_FEATURES)
    if not table.has("features"):
        features = [column.name for column in schema.columns if column.name != label]
    if not features or len(features) > MAX_FEATURES or len(set(features)) != len(features):
        raise table.bad("features", f"must be 1 to {MAX_FEATURES} columns, none of them twice")
    if label in features or schema[label].shape:
        raise table.bad("label", "must be a single number that is not a feature")
    return tuple(features)


def _read_edges(table: Table, schema: Schema, features: tuple[str, ...]) -> tuple[Edges, ...]:
    bins = table.whole("bins", Span(2, MAX_BINS), 32)
    given = table.table("edges", features)
    names = re.compile("|".join(map(re.escape, features)))
    logarithmic = table.texts("log_features", names, "the name of a feature", len(features))
    edges = []
    for name in features:
        column = schema[name]
        if column.shape:
            raise table.bad("features", f"must not name {name!r}, which is not a single number")
        if given.has(name):
            edges.append(_given_edges(given, name))
        elif not column.is_bounded:
            raise UsageError(
                f"{table.where} feature {name!r} has no public bounds to cut into bins: give low"
                " and high (or levels) in its [[columns]], or its edges in [trees.edges]"
            )
        else:
            edges.append(_cut(column, bins, logarithmic=name in logarithmic))
    return tuple(edges)


def _given_edges(given: Table, name: str) -> Edges:
    values = given.numbers(name, _EDGE, MAX_BINS - 1)
    rounded = np.asarray(values, dtype=np.float32)
    if not values or not (np.diff(rounded) > 0).all():
        raise given.bad(name, "must be edges that increase, in single precision too")
    return as_edges(values)


def _cut(column: Column, bins: int, *, logarithmic: bool) -> Edges:
    return log_edges(column, bins) if logarithmic else equal_edges(column, bins)


def _check_size(table: Table, trees: Trees) -> None:
    """Refuse a job whose histograms or model would be out of all proportion."""
    widest = sorted((len(edges) + 2 for edges in trees.edges), reverse=True)
    if trees.structure == LEVELS:
        cells = sum(widest[: trees.features_per_tree]) << (trees.depth - 1)
    else:
        cells = int(np.prod(widest[: trees.features_per_tree], dtype=np.float64))
    numbers = trees.trees * (5 << trees.depth)
    if cells > MAX_CELLS or numbers > MAX_CELLS:
        raise UsageError(
            f"{table.where} would take sums of {cells} cells and a model of {numbers} numbers;"
            f" {MAX_CELLS} is the most: lower bins, depth, trees or features_per_tree"
        )
