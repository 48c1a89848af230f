"""Stand-ins for what these tests are not about: the trainer's process."""

import pytest

from tests.support.live_site import FakeTrainer


@pytest.fixture(autouse=True)
def fake_trainer(monkeypatch):
    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", FakeTrainer)
    monkeypatch.setattr(FakeTrainer, "fail_next", 0)
