"""`edge-node audit dp`: what it prints and writes, and what its exit code says."""

import json

import pytest
from typer.testing import CliRunner

from edge_node.audit import dp
from edge_node.audit.dp import Caught, DpReport
from edge_node.audit.finding import Finding
from edge_node.audit.setting import Setting
from edge_node.cli import app

HELD = Finding("noise: variance", "a share", "within 1.0% of 7", "+0.20%", True, 1e-7)
LOST = Finding("canaries", "sums", "<= epsilon 3", "9.1", False, 1e-5)
NOTICED = Caught("half-noise", "half the deviation", ("noise: variance",))
MISSED = Caught("no-clip", "no clip", ())


@pytest.fixture
def run(monkeypatch):
    def invoke(findings, mutants, *arguments):
        asked = []

        def audit(seed, setting_of, **_):
            asked.append((seed, setting_of(bytes(32))))
            return DpReport(findings, mutants, seed, 10, 20)

        monkeypatch.setattr(dp, "audit_dp", audit)
        return CliRunner().invoke(app, ["audit", "dp", *arguments]), asked[0]

    return invoke


def test_a_pass_is_exit_code_zero(run):
    result, (seed, setting) = run((HELD,), (NOTICED,))
    assert result.exit_code == 0
    assert seed is None, "the system's own randomness, as in the daemon"
    assert setting == Setting.whole(bytes(32))
    assert "PASS: 1 claims held" in result.stdout
    assert "below 1.0e-07" in result.stdout


@pytest.mark.parametrize(
    ("findings", "mutants", "said"),
    [
        ((HELD, LOST), (NOTICED,), "FAIL: 1 of 2 claims did not hold"),
        ((HELD,), (NOTICED, MISSED), "1 of 2 broken pipelines went unnoticed"),
    ],
)
def test_a_lost_claim_or_a_missed_fault_is_exit_code_one(run, findings, mutants, said):
    result, _ = run(findings, mutants)
    assert result.exit_code == 1
    assert said in " ".join(result.stdout.split())
    assert "FAILED" in result.stdout or "NOTHING" in result.stdout


def test_the_findings_go_to_a_file_too(run, tmp_path):
    path = tmp_path / "dp.json"
    result, (seed, setting) = run((LOST,), (MISSED,), "--json", str(path), "--seed", "7", "--short")
    assert result.exit_code == 1, "a file that was written does not make it a pass"
    assert (seed, setting) == (7, Setting.short(bytes(32)))
    written = json.loads(path.read_text())
    assert written["passed"] is False
    assert written["seed"] == 7
    assert written["findings"][0]["measured"] == "9.1"
    assert written["mutants"] == [{"mutant": "no-clip", "fault": "no clip", "checks": []}]


def test_a_file_that_cannot_be_written_is_said_in_one_line(run, tmp_path):
    result, _ = run((HELD,), (NOTICED,), "--json", str(tmp_path / "none" / "dp.json"))
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
