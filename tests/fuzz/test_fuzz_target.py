"""The fuzz target runs, from its seeds, for a short while; `make fuzz` runs it for longer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vectors.write_frames import FOLDER, frames

ROOT = Path(__file__).parents[2]


def test_the_seeds_are_the_frames_of_today():
    written = {path.name: path.read_bytes() for path in FOLDER.glob("*.bin")}
    assert written == frames(), "run: python -m tests.vectors.write_frames"


def test_a_short_fuzz_run_finds_nothing(tmp_path):
    pytest.importorskip("atheris", reason="atheris has no wheel for this Python or machine")
    program = [sys.executable, "-m", "tests.fuzz.fuzz_frames", "-runs=600", "-seed=7"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [*program, f"-artifact_prefix={tmp_path}/"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 600 runs" in done.stderr
    assert not list(tmp_path.iterdir())
