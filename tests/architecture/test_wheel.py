"""The wheel holds our four packages and nothing else (architecture.md section 4)."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index",
        "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"no wheel (is hatchling installed?): {result.stderr}"
    (wheel,) = folder.glob("tidegate-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_top_level_is_exactly_the_four_packages(wheel_names):
    top = {name.split("/")[0] for name in wheel_names}
    packages = {name for name in top if not name.endswith(".dist-info")}
    assert packages == {"privacy", "aggregator", "edge_node", "tidegate"}
    assert len(top) == 5


def test_wire_contract_is_inside(wheel_names):
    assert {"tidegate/v1/federation_pb2.py", "tidegate/convert/__init__.py"} <= set(wheel_names)


def test_nothing_private_is_inside(wheel_names):
    endings = (".key", ".pem", ".db", ".sqlite", ".csv")
    assert [name for name in wheel_names if name.endswith(endings)] == []


def test_proto_is_a_source_root_and_no_package():
    assert not (ROOT / "proto" / "__init__.py").exists()
