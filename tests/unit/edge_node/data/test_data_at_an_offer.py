"""What a job offer meets: a data set that opens, fits, tells users apart, or refuses the job."""

import logging

import numpy as np
import pytest

from edge_node.acceptance import check_columns
from edge_node.config import load_config
from edge_node.offers import _load
from privacy.errors import PeerError, Reason
from tests.support.live_aggregator import RECORD, job_toml
from tidegate.jobfile import JobFile

SITE = """
[site]
id = "bank-a"
folder = "state"
[policy]
file = "policy.toml"
[datasets.credit]
dataset_id = "loans-2026"
loader = "npz"
path = "x.npz"
users = ["who"]
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "state").mkdir(mode=0o700)
    np.savez(tmp_path / "x.npz", age=[1.5, 2.5], who=np.array(["ann", "bob"]))
    return load_config(tmp_path / "site.toml")


def job(text="", **privacy):
    return JobFile.parse(job_toml(**privacy) + text.encode())


def test_a_job_whose_columns_do_not_fit_is_refused_in_words_that_may_be_sent(config, caplog):
    dataset = _load(config, "credit")
    check_columns(dataset, job())
    check_columns(dataset, job('\n[[columns]]\nname = "age"\n'))
    whole = job('\n[[columns]]\nname = "age"\ndtype = "int64"\n[[columns]]\nname = "agee"\n')
    with caplog.at_level(logging.WARNING, "edge_node"), pytest.raises(PeerError) as caught:
        check_columns(dataset, whole)
    assert caught.value.reason is Reason.POLICY
    assert "'age' is not int64 up to 2^24 throughout; there is no 'agee'" in str(caught.value)
    assert "some are not whole numbers" in caplog.text
    assert "some are not whole numbers" not in str(caught.value)


def test_a_job_for_users_needs_a_column_of_them(config):
    dataset = _load(config, "credit")
    for column, fits in (("who", True), ("age", False), ("whom", False)):
        by_user = _by_user(column)
        if fits:
            check_columns(dataset, by_user)
            continue
        with pytest.raises(PeerError, match=f"no column '{column}' that tells users apart"):
            check_columns(dataset, by_user)


def _by_user(column):
    unit = f'unit = "user"\nuser_column = "{column}"\nmax_rows_per_user = 4'
    return JobFile.parse(job_toml(privacy=f"{RECORD}\n{unit}"))


def test_a_changed_data_set_is_warned_of_and_charged_as_before(config, caplog):
    with caplog.at_level(logging.WARNING, "edge_node"):
        _load(config, "credit")
        assert caplog.text == ""
        np.savez(config.path.parent / "x.npz", age=[1.5, 3.5], who=np.array(["ann", "bob"]))
        assert _load(config, "credit").dataset_id == "loans-2026"
    assert "data set changed" in caplog.text
    assert "loans-2026" in caplog.text
