"""The generated code is what the contract generates, the contract lints, imports go one way."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
BIN = Path(sys.executable).parent


def run(*command, cwd=ROOT):
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_generated_code_is_up_to_date(tmp_path):
    sources = sorted(path.relative_to(PROTO) for path in PROTO.glob("tidegate/v1/*.proto"))
    assert len(sources) == 4
    result = run(
        sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}", *sources, cwd=PROTO,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*"))
    kept = sorted(path.relative_to(PROTO) for path in PROTO.rglob("*_pb2*.py*"))
    assert made == [path for path in kept if "__pycache__" not in path.parts]
    for path in made:
        assert (PROTO / path).read_bytes() == (tmp_path / path).read_bytes(), (
            f"{path} is out of date: run `make proto`"
        )


def test_contract_lints():
    result = run(BIN / "buf", "lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_imports_go_one_way():
    result = run(BIN / "lint-imports", "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr
