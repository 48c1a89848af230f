"""The credit example's Flower apps, run against each other in this process without an engine."""

import tomllib

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from safetensors.numpy import load_file

from tests.support.credit_market import FOLDER, csv_text, forget, load, make_wheel

BANKS = 5


class DirectGrid(Grid):
    """Hand each message to the client app at once; node n is the bank of partition n - 1."""

    def __init__(self, client_app, run_config, by_folder):
        self.client_app, self.run_config, self.by_folder = client_app, run_config, by_folder
        self.replies = []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_args, **_kwargs):
        raise NotImplementedError

    def push_messages(self, _messages):
        raise NotImplementedError

    def pull_messages(self, _message_ids):
        raise NotImplementedError

    def get_node_ids(self):
        return list(range(1, BANKS + 1))

    def send_and_receive(self, messages, *, timeout=None):
        replies = [self._answer(message) for message in messages]
        self.replies += replies
        return replies

    def _answer(self, message):
        node = message.metadata.dst_node_id
        config = {"partition-id": node - 1, "num-partitions": BANKS}
        if self.by_folder:
            config = {"data": f"{self.run_config['data-folder']}/bank-{node}"}
        return self.client_app(message, Context(1, node, config, RecordDict(), self.run_config))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Split a small market, and return what runs the server app on it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    for name, value in (("_task_id", 1), ("_run_id", 1), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    split = load("split")
    wheel = make_wheel(tmp_path, csv_text(1500))
    split.write(split.split(split.read_table(*wheel)), tmp_path / "data")
    config = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"num-server-rounds": 4, "local-steps": 5, "batch-size": 64}

    def start(by_folder):
        grid = DirectGrid(load("client_app").app, config, by_folder)
        load("server_app").app(grid, Context(1, 0, {}, RecordDict(), config))
        return grid

    yield start
    forget()


@pytest.mark.parametrize("by_folder", [False, True])
def test_the_pair_trains_every_round_at_every_bank_and_saves_the_model(run, tmp_path, by_folder):
    grid = run(by_folder)
    assert not any(reply.has_error() for reply in grid.replies)
    trained = [reply for reply in grid.replies if reply.metadata.message_type == "train"]
    assert len(trained) == 4 * BANKS
    losses = [reply.content["metrics"]["loss"] for reply in trained]
    assert np.mean(losses[-BANKS:]) < np.mean(losses[:BANKS])
    saved = load_file(tmp_path / "model.safetensors")
    assert sum(array.size for array in saved.values()) == 5545


def test_what_leaves_a_bank_when_training_does_not_say_how_many_customers_it_has(run):
    trained = [r for r in run(False).replies if r.metadata.message_type == "train"]
    assert {reply.content["metrics"]["num-examples"] for reply in trained} == {5 * 64}
