"""Loading a Flower app and calling it, here in the test's own process."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from edge_node.flower.app import FlowerAppError, FlowerCalls, load_client_app
from edge_node.flower.reply import check_update, read_description
from tests.support.flower_apps import PROJECT, SPEC, write_flower_app


@pytest.fixture(autouse=True)
def modules_are_forgotten(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "small"]:
        del sys.modules[name]


def calls(folder, **settings):
    given = {"run_config": {}, "node_config": {}, "node_id": 5, "state_bytes": 10_000}
    start = SimpleNamespace(settings={**given, **settings}, seed=0)
    arrays = SimpleNamespace(model_D=np.zeros(7, np.float32), blob=np.zeros(100_000, np.uint8))
    return FlowerCalls(start, SimpleNamespace(arrays=arrays), folder), arrays


def ask(served, arrays, state=b""):
    spec = SPEC.to_bytes()
    arrays.blob[: len(spec) + len(state)] = np.frombuffer(spec + state, np.uint8)
    fields = served.answer({"purpose": "train", "sizes": [len(spec), 0, len(state)]})
    raw = arrays.blob[: fields["blob"]].tobytes()
    return read_description(raw[: fields["description"]]), raw[fields["description"] :]


def test_no_generator_is_seeded_as_an_app_may_draw_its_noise_from_one(tmp_path):
    torch.manual_seed(123)
    served, arrays = calls(write_flower_app(tmp_path))
    ask(served, arrays)
    assert torch.initial_seed() == 123


def test_what_it_says_is_what_the_daemon_reads(tmp_path):
    served, arrays = calls(write_flower_app(tmp_path))
    reply, state = ask(served, arrays)
    assert check_update(reply, SPEC) == ()
    assert reply.metrics == {"num-examples": 1e12, "loss": 1.0, "secret": 7.0}
    assert arrays.model_D.tolist() == [0.5] * 7
    reply, again = ask(served, arrays, state)
    assert reply.metrics["loss"] == 2.0
    assert again != state


def test_a_state_beyond_the_limit_fails_the_call(tmp_path):
    served, arrays = calls(write_flower_app(tmp_path), state_bytes=20)
    with pytest.raises(Exception, match="this site keeps 20"):
        ask(served, arrays)


@pytest.mark.parametrize(
    ("project", "overrides", "said"),
    [
        (None, {}, "No such file"),
        ("[project]\nname = 'x'", {}, "folder of a Flower app"),
        (PROJECT, {"epochs": 1}, "'epochs'"),
        (PROJECT.replace("client_app:app", "client_app:nothing"), {}, "is no ClientApp"),
        (PROJECT.replace("client_app:app", "client_app:train"), {}, "is no ClientApp"),
    ],
)
def test_a_folder_that_is_no_flower_app_is_named(tmp_path, project, overrides, said):
    folder = write_flower_app(tmp_path, project=project or "")
    if project is None:
        (folder / "pyproject.toml").unlink()
    with pytest.raises(FlowerAppError, match=said):
        load_client_app(folder, overrides)
