"""A changed data set is told to its administrator, and to nobody else."""

import json

import numpy as np
import pytest

from edge_node.data import from_table
from edge_node.data.fingerprints import changed_since, remember


def data(value, name="credit", dataset_id="loans"):
    return from_table(name, dataset_id, ("x",), np.full((2, 1), value, dtype=np.float32))


def test_a_change_is_told_once_with_the_time_of_what_was_there_before(tmp_path):
    assert remember(tmp_path, data(1), 0.0) == ""
    assert remember(tmp_path, data(1), 1000.0) == ""
    assert changed_since(tmp_path, data(2)) == "1970-01-01T00:00:00+00:00"
    assert changed_since(tmp_path, data(1)) == ""
    assert remember(tmp_path, data(2), 2000.0) == "1970-01-01T00:00:00+00:00"
    assert remember(tmp_path, data(2), 3000.0) == ""
    assert remember(tmp_path, data(1), 4000.0) == "1970-01-01T00:33:20+00:00"


def test_data_sets_of_one_id_do_not_stand_in_each_others_way(tmp_path):
    assert remember(tmp_path, data(1), 0.0) == ""
    assert remember(tmp_path, data(2, name="credit-new"), 0.0) == ""
    assert remember(tmp_path, data(3, dataset_id="other"), 0.0) == ""
    assert changed_since(tmp_path, data(1)) == ""
    assert len(json.loads((tmp_path / "fingerprints.json").read_text())) == 2
    assert (tmp_path / "fingerprints.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{", '{"loans": {"credit": {}}}', '{"loans": 3}'])
def test_a_damaged_file_costs_the_warning_and_nothing_else(tmp_path, content):
    (tmp_path / "fingerprints.json").write_text(content)
    assert remember(tmp_path, data(1), 0.0) == ""
    assert changed_since(tmp_path, data(2))
