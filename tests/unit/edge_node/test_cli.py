"""The command line: one clear line for each expected error, and its exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_node.cli import app
from edge_node.overview import redact

SAMPLES = Path(__file__).parents[3] / "docs" / "samples"
POLICY = (SAMPLES / "policy.toml").read_text()
SITE = """
[site]
id = "bank-a"
folder = "state"
[store]
boot_key_folder = "boot"
[policy]
file = "policy.toml"
[datasets.credit]
loader = "plug:load"
[datasets.credit.options]
user = "reader"
password = "hunter2"
"""


@pytest.fixture
def site(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", [["run"], ["budget"]])
def test_a_site_that_is_not_enrolled_is_told_so_in_one_line(site, command):
    result = call(*command, "--config", site)
    assert result.exit_code == 2
    assert {"run": "edge-node enrol", "budget": "edge-node run"}[command[0]] in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output


def test_a_wrong_config_names_the_key(site):
    site.write_text(SITE.replace("folder =", "foldr ="))
    result = call("show-config", "--config", site)
    assert result.exit_code == 2
    assert "did you mean 'folder'?" in result.stderr


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("nonsense", 0o600, "does not start with"),
        ("tg1.!!!", 0o600, "damaged"),
        ("tg1.whatever", 0o644, "chmod 600"),
    ],
)
def test_a_bad_token_file_is_refused_without_repeating_it(site, tmp_path, content, mode, words):
    token = tmp_path / "token"
    token.write_text(content)
    token.chmod(mode)
    result = call("enrol", "--config", site, "--token-file", token)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "whatever" not in result.stderr


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("mode = []", "did you mean 'modes'?"),
        (POLICY.replace("memory_mib = 16384", "memory_mib = 64"), "above the ceiling"),
    ],
)
def test_enrolment_refuses_the_policy_that_a_run_would_before_it_uses_the_token(
    site, tmp_path, policy, words
):
    (tmp_path / "policy.toml").write_text(policy)
    result = call("enrol", "--config", site, "--token-file", tmp_path / "none")
    assert result.exit_code == 2
    assert words in result.stderr
    assert "none" not in result.stderr


def test_show_config_is_whole_and_redacted(site, monkeypatch):
    monkeypatch.setattr("edge_node.overview._sandbox", dict)
    (site.parent / "policy.toml").write_text((SAMPLES / "policy.toml").read_text())
    result = call("show-config", "--config", site, "--json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert shown["policy"]["modes"] == ["record-distributed"]
    assert shown["datasets"]["credit"]["options"] == {"user": "reader", "password": "<redacted>"}
    assert "hunter2" not in result.stdout
    text = call("show-config", "--config", site)
    assert "hunter2" not in text.stdout


def test_what_could_be_a_secret_is_struck_out_at_any_depth():
    assert redact({"path": "x", "options": {"api_token": "t", "deep": {"KEY": "k"}}}) == {
        "path": "x",
        "options": {"api_token": "<redacted>", "deep": {"KEY": "<redacted>"}},
    }


def test_help_needs_neither_grpc_nor_torch_nor_numpy():
    script = (
        "import sys; from edge_node.cli import app\n"
        "heavy = {'grpc', 'torch', 'flwr', 'numpy', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_run_stops_cleanly_on_sigterm_and_leaves_no_process(tmp_path):
    """Enrolled by hand against nobody: the daemon dials in vain, then is told to stop."""
    from edge_node.config import load_config
    from tidegate import pki

    folder = tmp_path / "site"
    folder.mkdir(mode=0o700)
    (folder / "site.toml").write_text(SITE)
    config = load_config(folder / "site.toml")
    config.keys.mkdir(parents=True, mode=0o700)
    config.folder.chmod(0o700)
    validity = pki.Validity(time.time())
    authority = pki.make_ca("test", validity)
    tls, signing = pki.make_key(), pki.make_key()
    csr = pki.make_csr(tls, "bank-a")
    files = {
        "tls.key": pki.key_pem(tls),
        "signing.key": pki.key_pem(signing),
        "ca.pem": authority.certificate_pem(),
        "operator.spki": pki.spki_der(pki.make_key()),
        "aggregator.json": json.dumps({"sites": "127.0.0.1:9"}).encode(),
        "tls.pem": pki.issue_site_cert_from_csr(authority, csr, "bank-a", validity),
    }
    for name, data in files.items():
        pki.write_private(config.keys / name, data)
    program = [sys.executable, "-c", "from edge_node.cli import app; app()", "run", "--config"]
    process = subprocess.Popen(
        [*program, str(folder / "site.toml")], stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        seen = b""
        while b"session ended" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        assert b"no policy" in seen
        second = subprocess.run(
            [*program, str(folder / "site.toml")], capture_output=True, timeout=60, check=False
        )
        assert second.returncode == 2
        assert b"another edge node" in second.stderr
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[1]
        assert process.returncode == 0, rest
        assert b"stopped" in rest
        assert b"Traceback" not in seen + rest
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
