"""Programs of the command line run our modules, wherever the operator stands."""

import pytest

from aggregator.cli.app_program import run_app_program
from privacy.errors import UsageError


def test_a_file_of_the_current_folder_does_not_pass_for_one_of_ours(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('taken over')")
    (tmp_path / "edge_node.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)
    files = [str(tmp_path / name) for name in ("app", "job.toml", "model", "out.pt2")]
    with pytest.raises(UsageError, match=r"job\.toml") as caught:
        run_app_program(("edge_node.tasks.model_formats", *files), "out.pt2", "why?")
    assert "taken over" not in str(caught.value)
