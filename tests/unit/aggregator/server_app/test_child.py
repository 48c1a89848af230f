"""The process of a ServerApp is confined, heard, bounded in time and print, and ended."""

import json

import pytest

from aggregator.server_app.child import ServerAppChild
from aggregator.server_app.frames import Start
from privacy.errors import UsageError
from tests.support.flower_rounds import SPEC
from tests.support.flower_site import flower_app
from tidegate import appbundle

MAIN = """
    import os
    import pathlib
    import socket

    seen = {"app": sorted(os.listdir("/app"))}
    for name, forbidden in {
        "socket": socket.socket,
        "fork": os.fork,
        "passwd": lambda: open("/etc/passwd"),
        "folder": lambda: os.listdir(context.run_config["folder"]),
        "write": lambda: open("/app/x", "w"),
    }.items():
        try:
            forbidden()
            seen[name] = "allowed"
        except OSError:
            seen[name] = "refused"
    pathlib.Path("model.bin").write_bytes(bytes(20 << 20))
    print("x" * (2 << 20))
    raise RuntimeError(__import__("json").dumps(seen))
"""


def start_of(folder, app_folder, **changes):
    fields = {
        "app_folder": str(app_folder),
        "reference": "demo.server_app:app",
        "run_config": {"folder": str(folder)},
        "spec_bytes": len(SPEC.to_bytes()),
        "model_length": SPEC.length,
        "seed": 0,
        "single_reply": False,
        "memory_mib": 2048,
        "scratch_mib": 64,
        "threads": 1,
        "hidden": (str(folder),),
        "required": False,
    }
    return Start(**{**fields, **changes})


@pytest.fixture
def launch(tmp_path):
    children = []

    def launch(body, **changes):
        app_folder = tmp_path / "app"
        appbundle.unpack(flower_app(body, "FedAvg"), app_folder)
        start = start_of(tmp_path, app_folder, **changes)
        children.append(ServerAppChild(start, SPEC.to_bytes(), tmp_path / "log"))
        return children[-1]

    yield launch
    for child in children:
        child.end()


def test_main_sees_its_app_and_nothing_else(launch, tmp_path):
    child = launch(MAIN)
    missing = child.receive(60.0, lambda: None)["ready"]
    with pytest.raises(UsageError, match=r"demo/server_app\.py, line \d+") as caught:
        child.receive(60.0, lambda: None)
    text = str(caught.value)
    seen = json.loads(text[text.index("{") : text.index("}") + 1])
    assert seen.pop("app") == ["demo", "pyproject.toml"]
    assert seen.pop("fork") == seen.pop("write") == "refused"
    assert set(seen.values()) == {"refused"} or missing
    assert (tmp_path / "log").stat().st_size == 1 << 20


def test_a_main_that_hangs_is_given_up_and_ended(launch):
    child = launch("    import time; time.sleep(600)")
    child.receive(60.0, lambda: None)
    with pytest.raises(UsageError, match=r"more than 0\.3 s without an exchange"):
        child.receive(0.3, lambda: None)
    assert child.end() != 0
