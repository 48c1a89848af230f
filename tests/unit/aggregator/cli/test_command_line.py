"""The command line as a person meets it: what init makes, exit statuses, one-line errors, JSON."""

import json
import stat
import subprocess
import sys
import time
from concurrent import futures
from io import StringIO
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from aggregator.cli import connection, main, setup
from aggregator.cli.output import moment, table_of
from aggregator.cli.progress import job_table, mode_text
from privacy.errors import PeerError, Reason, UsageError
from tidegate import pki
from tidegate.convert import job_status_from_wire, job_status_to_wire
from tidegate.requests import JobStatus
from tidegate.v1 import operator_pb2, operator_pb2_grpc

EXAMPLES = Path(__file__).parents[4] / "examples"
PRIVACY = b"""[privacy]
mode = "record-distributed"
epsilon = 0.5
delta_dp = 1e-6
max_records = 1000
[round]
target_sites = 5
"""
COLUMN = b"""[[columns]]
name = "age"
low = 18.0
high = 110.0
"""
JOB = b'[job]\nname = "counts"\ndataset = "credit"\n'
SCORE = b"""[task]
file = "task.py"
[evaluation]
of_job = "credit-1"
version = 1
[[metrics]]
name = "loss"
kind = "mean"
upper = 4.0
"""
JOB_FILES = {
    "counts": JOB + b"[statistics]\nbins = 8\n" + PRIVACY + COLUMN,
    "score": JOB + SCORE + PRIVACY,
    "trees": (EXAMPLES / "credit-trees" / "job.toml").read_bytes(),
}
ANY_JOB = (EXAMPLES / "credit" / "job.toml").read_bytes()


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tidegate", *map(str, arguments)])
        try:
            main.main()
        except SystemExit as end:
            status = end.code or 0
        else:
            status = 0
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    folder = tmp_path_factory.mktemp("consortium") / "c"
    setup.make_consortium(folder, "banks", "127.0.0.1", setup.Ports(0, 0, 0))
    return folder


class FakeOperator(operator_pb2_grpc.OperatorServiceServicer):
    def ListSites(self, request, context):
        site = operator_pb2.Site(site_id="bank-1", state="connected", device="cpu", bundles=64)
        return operator_pb2.ListSitesResponse(sites=[site])

    def ListJobs(self, request, context):
        job = operator_pb2.Job(
            job_id="plain-1", name="plain", state="running", mode="none", detail="b: [/red] :( "
        )
        return operator_pb2.ListJobsResponse(jobs=[job])

    def GetJob(self, request, context):
        job = operator_pb2.Job(
            job_id=request.job_id, state="finished", round=request.job_id != "new"
        )
        toml = JOB_FILES.get(request.job_id, ANY_JOB)
        return operator_pb2.GetJobResponse(job=job, job_toml=toml)

    def RevokeSite(self, request, context):
        context.set_trailing_metadata((("tidegate-reason", "malformed"),))
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no site is called {request.site_id}")

    def ExportModel(self, request, context):
        yield operator_pb2.ExportModelResponse(size=6, data=b"abc")
        if request.job_id == "whole":
            yield operator_pb2.ExportModelResponse(size=6, data=b"def")


@pytest.fixture
def aggregator(consortium):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    operator_pb2_grpc.add_OperatorServiceServicer_to_server(FakeOperator(), server)
    folder = consortium / "aggregator"
    credentials = grpc.ssl_server_credentials(
        [((folder / "tls.key").read_bytes(), (folder / "tls.pem").read_bytes())],
        root_certificates=(folder / "ca.pem").read_bytes(),
        require_client_auth=True,
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    (folder / "addresses.json").write_text(json.dumps({"operator": f"127.0.0.1:{port}"}))
    yield consortium / "operator"
    server.stop(None).wait()
    (folder / "addresses.json").unlink()


def test_init_makes_private_files_and_keeps_the_operator_key_from_the_aggregator(run, tmp_path):
    status, out, _ = run("--json", "init", tmp_path / "new", "--name", "banks")
    assert status == 0
    made = json.loads(out)
    files = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()} == {0o700}
    assert not (tmp_path / "new" / "aggregator" / "operator.key").exists()
    spki = (tmp_path / "new" / "aggregator" / "operator.spki").read_bytes()
    assert made["operator_fingerprint"] == pki.fingerprint(spki).hex()


def test_init_never_overwrites_keys(run, consortium):
    status, out, error = run("init", consortium)
    assert (status, out) == (2, "")
    assert "never overwritten" in error
    assert error.count("\n") == 1


def test_a_missing_operator_folder_is_named_with_the_mend(run, tmp_path):
    status, _, error = run("--operator", tmp_path, "site", "list")
    assert status == 2
    assert "tidegate init" in error


def test_an_aggregator_that_is_down_is_said_so(run, consortium):
    (consortium / "aggregator" / "addresses.json").write_text('{"operator": "127.0.0.1:1"}')
    status, _, error = run("--operator", consortium / "operator", "site", "list")
    (consortium / "aggregator" / "addresses.json").unlink()
    assert status == 2
    assert "does not answer" in error


def test_sites_are_listed_over_mtls_as_json_and_as_table(run, aggregator):
    status, out, _ = run("--operator", aggregator, "--json", "site", "list")
    assert status == 0
    assert json.loads(out)[0]["site_id"] == "bank-1"
    assert "bank-1" in run("--operator", aggregator, "site", "list")[1]


def test_a_refusal_keeps_its_reason_and_exit_status(run, aggregator):
    status, _, error = run("--operator", aggregator, "site", "revoke", "bank-9", "--why", "gone")
    assert status == 3
    assert error == "tidegate: malformed: no site is called bank-9\n"


def test_a_model_appears_only_when_whole(run, aggregator, tmp_path):
    arguments = ("--operator", aggregator, "model", "export")
    assert run(*arguments, "cut", "--out", tmp_path / "cut")[0] == 3
    assert list(tmp_path.iterdir()) == []
    assert run(*arguments, "whole", "--out", tmp_path / "whole")[0] == 0
    assert (tmp_path / "whole").read_bytes() == b"abcdef"


@pytest.mark.parametrize(
    ("job", "name", "why"),
    [
        ("new", "m.safetensors", "trained no model yet"),
        ("counts", "m.safetensors", "stats show"),
        ("score", "m.safetensors", "measured the model of job credit-1"),
        ("trees", "m.onnx", "write .json"),
        ("whole", "m.pt2", "add --app"),
    ],
)
def test_a_job_without_such_a_model_writes_none(run, aggregator, tmp_path, job, name, why):
    arguments = ("--operator", aggregator, "model", "export", job, "--out", tmp_path / name)
    status, _, error = run(*arguments)
    assert (status, why in error) == (2, True), error
    assert list(tmp_path.iterdir()) == []
    if name == "m.safetensors":
        assert run("--operator", aggregator, "model", "card", job, "--out", tmp_path / "c")[0] == 2


def test_a_job_id_is_whole_in_a_narrow_list():
    name = "credit-statistics-e7ec0706"
    console = Console(file=StringIO(), width=80)
    columns = ("job", "mode", "state", "#round", "submitted (UTC)", "detail")
    cells = (
        name,
        "record-distributed",
        "failed",
        "0/1",
        "2026-11-30",
        "why " * 20,
    )
    console.print(table_of("jobs", columns, [cells]))
    assert name in console.file.getvalue()


def test_times_are_utc_wherever_they_are_read(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment(1_800_000_000) == "2027-01-15 08:00:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_readable_operator_key_is_refused(run, aggregator):
    key = aggregator / "tls.key"
    key.chmod(0o644)
    status, _, error = run("--operator", aggregator, "site", "list")
    key.chmod(0o600)
    assert status == 2
    assert "chmod 600" in error


def test_client_toml_with_an_unknown_key_is_refused(tmp_path):
    (tmp_path / "client.toml").write_text('name = "x"\naddress = "h:1"\nadress = "h:2"\n')
    with pytest.raises(UsageError, match="adress"):
        connection.OperatorFolder.load(tmp_path)


def test_the_command_line_starts_without_loading_torch():
    program = (
        "import sys, aggregator.cli.main; print('torch' in sys.modules, 'flwr' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("policy", Reason.POLICY), ("no-such-reason", Reason.INTERNAL)],
)
def test_unknown_reasons_from_the_wire_become_internal(text, reason):
    class Refusal(grpc.RpcError, grpc.Call):
        def code(self):
            return grpc.StatusCode.PERMISSION_DENIED

        def details(self):
            return "no"

        def trailing_metadata(self):
            return (("tidegate-reason", text),)

        initial_metadata = is_active = time_remaining = cancel = add_callback = None

    error = connection.explained(Refusal(), "h:1")
    assert isinstance(error, PeerError)
    assert error.reason is reason


def test_job_list_names_the_mode_and_prints_what_sites_wrote_as_it_is(run, aggregator):
    status, out, _ = run("--operator", aggregator, "job", "list")
    assert status == 0
    assert "none" in out
    assert "[/red]" in out


def test_mode_none_is_red_in_every_picture_of_a_job():
    job = JobStatus(
        "plain-1", "plain", "running", "", 1, 3, 0, 0, {}, (), 1.0, 1.0, 0.0, "none", "none", ()
    )
    console = Console(force_terminal=True, color_system="truecolor", file=StringIO(), width=200)
    console.print(mode_text(job), job_table(job))
    red = "\x1b[1;31m"
    drawn = console.file.getvalue()
    assert f"{red}none" in drawn
    assert f"{red}NO DIFFERENTIAL PRIVACY" in drawn


@pytest.mark.parametrize(
    ("sites", "person", "says"),
    [(1, 1.25, None), (2, 2.6001, "in 2 sites: ε ≤ 2.601"), (9, 1e9, "in 9 sites: ε ≤ ∞ (no")],
)
def test_the_person_in_several_sites_stands_beside_every_epsilon(sites, person, says):
    job = JobStatus(
        "own-1", "own", "running", "", 1, 3, 0, 0, {}, (), 1.0, 1.0, 1e-6, "record",
        "record-distributed", (), "enforced", sites, 1.25, person,
    )  # fmt: skip
    console = Console(file=StringIO(), width=80)
    console.print(job_table(job))
    drawn = console.file.getvalue()
    assert "person in one site: ε ≤ 1.250" in drawn
    assert "sites: ε" not in drawn if says is None else says in drawn
    assert job_status_from_wire(job_status_to_wire(job)) == job


def test_what_an_app_declares_of_its_noise_is_conditional_in_every_picture_of_a_job():
    tier = f"conditional on reviewed code sha256:{'ab' * 32}"
    job = JobStatus(
        "own-1", "own", "running", "", 1, 3, 0, 0, {}, (), 1.0, 1.0, 1e-6, "record",
        "record-local", (), tier,
    )  # fmt: skip
    console = Console(file=StringIO(), width=200)
    console.print(mode_text(job))
    console.print(job_table(job))
    listed, drawn = console.file.getvalue().split("\n", 1)
    assert listed == "record-local (conditional)"
    assert tier in drawn
    assert job_status_from_wire(job_status_to_wire(job)) == job


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("init", "{file}/c"), "Not a directory"),
        (("--operator", "{file}", "job", "list"), "Not a directory"),
        (("--operator", "{operator}", "site", "token", "b", "--out", "{file}x/t"), "no folder"),
        (("demo", "--data", "{file}", "--json", "{file}x/r", "--no-browser"), "no such folder"),
        (("demo", "--data", "{file}", "--folder", "{file}", "--no-browser"), "Not a directory"),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line_and_status_2(
    run, consortium, tmp_path, arguments, says
):
    file = tmp_path / "file"
    file.touch()
    named = {"file": file, "operator": consortium / "operator"}
    status, _, err = run(*(argument.format(**named) for argument in arguments))
    assert (status, len(err.splitlines())) == (2, 1)
    assert says in err


def test_data_that_is_not_the_demos_is_named(run, tmp_path):
    (tmp_path / "other.whl").write_bytes(b"something")
    folder = tmp_path / "demo"
    status, _, err = run(
        "demo", "--data", tmp_path / "other.whl", "--folder", folder, "--no-browser"
    )
    assert (status, len(err.splitlines())) == (2, 1)
    assert "--data" in err
    assert "SHA-256" in err


def test_a_refused_name_leaves_no_half_made_consortium(run, tmp_path):
    status, _, err = run("init", tmp_path / "c", "--name", "Bad Name")
    assert status == 2
    assert "not allowed" in err
    assert run("init", tmp_path / "c", "--name", "good", "--site-port", "70000")[0] == 2
    assert run("init", tmp_path / "c", "--name", "good")[0] == 0


@pytest.mark.parametrize("valid_s", ["-5", "0", "99999999999999999999"])
def test_a_token_that_never_holds_is_refused_before_it_is_asked_for(run, tmp_path, valid_s):
    status, _, err = run("site", "token", "b", "--out", tmp_path / "t", "--valid-s", valid_s)
    assert status == 2
    assert "Traceback" not in err
    assert not (tmp_path / "t").exists()


def test_another_job_file_of_an_app_is_read_in_place_of_its_own(run, consortium):
    credit = Path(__file__).parents[4] / "examples" / "credit"
    status, out, _ = run("--json", "job", "check", credit, "--job", credit / "record-local.toml")
    assert (status, "optimizer" in out) == (0, False)
    assert json.loads(out)["parameters"] == 5545
    operator = consortium / "operator"
    options = ("--job", credit / "record-local.toml", "--sites", "5")
    status, _, error = run("--operator", operator, "job", "submit", credit, *options)
    assert (status, "belongs into it" in error) == (2, True)
    status, _, error = run("job", "check", credit, "--job", credit / "none.toml")
    assert (status, "none.toml: No such file" in error) == (2, True)
