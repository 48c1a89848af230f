import pytest

from privacy.errors import UsageError
from tidegate.flower_project import read_project

GOOD = """
[tool.flwr.app]
publisher = "x"
[tool.flwr.app.components]
clientapp = "pkg.sub.client_app:make.app"
serverapp = "server:app"
[tool.flwr.app.config]
lr = 0.5
rounds = 3
flag = true
name = "x"
[tool.flwr.app.config.outer.inner]
deep = 1
"""


def test_an_app_names_its_objects_and_settings():
    project = read_project(GOOD.encode())
    assert (project.client_app, project.server_app) == ("pkg.sub.client_app:make.app", "server:app")
    assert project.settings == {
        "lr": 0.5, "rounds": 3, "flag": True, "name": "x", "outer.inner.deep": 1,
    }  # fmt: skip


def test_a_jobs_settings_override_those_the_app_has():
    project = read_project(GOOD.encode())
    assert project.run_config({"lr": 1, "outer.inner.deep": 2})["outer.inner.deep"] == 2
    assert project.settings["lr"] == 0.5
    with pytest.raises(UsageError, match="'epochs', which"):
        project.run_config({"epochs": 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "no TOML"),
        ("[project]\nname = 'x'", "folder of a Flower app"),
        ("[tool.flwr]\napp = 3", "folder of a Flower app"),
        ("[tool.flwr.app]\nx = 1", "components"),
        ("[tool.flwr.app.components]\nserverapp = 'a:b'", "clientapp is missing"),
        ("[tool.flwr.app.components]\nclientapp = 'a'", "package.module:object"),
        ("[tool.flwr.app.components]\nclientapp = '../a:b'", "package.module:object"),
        ("[tool.flwr.app.components]\nclientapp = 'a:b()'", "package.module:object"),
        ("[tool.flwr.app.components]\nclientapp = 3", "package.module:object"),
        (GOOD.replace("lr = 0.5", "lr = [1]"), "config] lr must be"),
        (GOOD.replace("deep = 1", "deep = 2020-01-01"), "outer.inner.deep must be"),
        ("x = '" + "x" * 70_000 + "'", "more than"),
    ],
)
def test_what_is_wrong_is_said_with_its_table(text, said):
    with pytest.raises(UsageError, match=said):
        read_project(text.encode())
