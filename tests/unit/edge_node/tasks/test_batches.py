"""Rows as columns, and rows that are made up."""

import numpy as np
import pytest
import torch

from edge_node.tasks.batches import draw_rows, edge_rows, missing_rows, padding_row, read_batch
from tidegate.schema import Column, Schema, scalars

SCHEMA = Schema(
    (
        Column("age", low=18.0, high=90.0),
        Column("image", shape=(2, 3), low=-1.0, high=1.0),
        Column("kind", "int64", low=0.0, high=4.0, levels=5),
        Column("rank", "int64", (2,), low=1.0, high=3.0),
        Column("free"),
    )
)


def test_columns_have_their_shapes_types_and_values():
    rows = torch.arange(22.0).reshape(2, 11)
    batch = read_batch(rows, SCHEMA)
    assert {name: tuple(values.shape) for name, values in batch.items()} == {
        "age": (2,), "image": (2, 2, 3), "kind": (2,), "rank": (2, 2), "free": (2,),
    }  # fmt: skip
    assert batch["kind"].dtype == batch["rank"].dtype == torch.int64
    assert batch["image"].dtype == torch.float32
    assert batch["image"][1].tolist() == [[12.0, 13.0, 14.0], [15.0, 16.0, 17.0]]
    assert batch["rank"].tolist() == [[8, 9], [19, 20]]


def test_whole_numbers_are_exact_up_to_the_schemas_bound():
    schema = Schema((Column("token", "int64"),))
    values = torch.tensor([[0.0], [30_521.0], [2.0**24]])
    assert read_batch(values, schema)["token"].tolist() == [0, 30_521, 2**24]


def test_a_job_without_a_schema_has_single_numbers():
    batch = read_batch(torch.tensor([[1.0, torch.nan]]), scalars(("a", "b")))
    assert batch["a"].tolist() == [1.0]
    assert batch["b"].isnan().all()


def test_padding_lies_between_the_bounds():
    row = padding_row(SCHEMA)
    assert row.dtype == np.float32
    assert row.tolist() == [18.0, *[0.0] * 6, 0.0, 1.0, 1.0, 0.0]


def test_made_up_rows_reach_every_level_and_stay_between_the_bounds():
    rows = draw_rows(SCHEMA, 400, torch.Generator().manual_seed(1))
    batch = read_batch(rows, SCHEMA)
    assert set(batch["kind"].tolist()) == {0, 1, 2, 3, 4}
    assert set(batch["rank"].flatten().tolist()) == {1, 2, 3}
    assert 18 <= batch["age"].min() < 25
    assert 80 < batch["age"].max() <= 90
    assert -1 <= batch["image"].min() < -0.9
    assert 0.9 < batch["image"].max() <= 1
    again = draw_rows(SCHEMA, 400, torch.Generator().manual_seed(1))
    assert torch.equal(rows, again)


def test_edges_are_the_bounds_and_missing_values_are_in_float_columns_only():
    low, high, padding = read_batch(edge_rows(SCHEMA), SCHEMA)["age"].tolist()
    assert (low, high, padding) == (18.0, 90.0, 18.0)
    missing = read_batch(missing_rows(SCHEMA), SCHEMA)
    assert missing["age"].isnan().tolist() == [True, False, False, True]
    assert missing["image"].isnan().any((1, 2)).tolist() == [False, True, False, True]
    assert missing["kind"].tolist() == [0] * 4


@pytest.mark.parametrize("column", [Column("k", "int64"), Column("k")])
def test_rows_without_bounds_are_between_0_and_1(column):
    rows = draw_rows(Schema((column,)), 50, torch.Generator().manual_seed(2))
    assert 0 <= rows.min() < 0.2
    assert 0.8 < rows.max() <= 1
