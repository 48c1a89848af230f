"""The sandbox, with a hostile app in a real process."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edge_node.trainer import child
from edge_node.trainer.frames import STEPS
from edge_node.trainer.trainer import TrainerFailure, probe
from privacy.errors import UsageError
from tests.support.trainer_apps import LINEAR, make_trainer, write_app
from tidegate.confine import sandbox, start
from tidegate.confine.sandbox import SandboxMode, SandboxPlan, SandboxReport

ALL = SandboxReport(network=True, filesystem=True, process=True, memory=True, syscalls=True)

# Every attack either raises OSError or the like, or gives what it got hold of.
ATTACKS = """
import ctypes, json, mmap, pathlib, signal, socket, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)

def system_call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result

def connect(family, address):
    with socket.socket(family) as s:
        s.connect(address)

def memory_shared():
    return len(mmap.mmap(-1, 1 << 20))

def memory_in_scratch():
    for number in range(100):
        pathlib.Path(f"/tmp/{number}").write_bytes(bytes(8 << 20))

def file_large():
    pathlib.Path("/tmp/large").write_bytes(bytes(17 << 20))

attacks = {
    "read the key": lambda: pathlib.Path(SITE, "site.key").read_text(),
    "list the site's folder": lambda: os.listdir(SITE),
    "list the parent's folder": lambda: os.listdir(os.path.dirname(SITE)),
    "list a hidden folder inside a shown one": lambda: os.listdir(COVERED)[0],
    "read the password file": lambda: pathlib.Path("/etc/passwd").read_text(),
    "read the kernel log": lambda: pathlib.Path("/dev/kmsg").read_bytes(),
    "connect to loopback": lambda: connect(socket.AF_INET, ("127.0.0.1", PORT)),
    "connect to the world": lambda: connect(socket.AF_INET, ("192.0.2.1", 443)),
    "connect to a local socket": lambda: connect(socket.AF_UNIX, UNIX),
    "resolve a name": lambda: socket.create_connection(("example.org", 443), timeout=2),
    "fork": lambda: [os.fork() for _ in range(4)],
    "start a program": lambda: subprocess.run(["/bin/true"]),
    "replace itself": lambda: os.execv("/bin/true", ["true"]),
    "kill the daemon": lambda: os.kill(DAEMON, signal.SIGKILL),
    "kill everything": lambda: os.kill(-1, signal.SIGKILL),
    "read the daemon's environment": lambda: pathlib.Path(f"/proc/{DAEMON}/environ").read_bytes(),
    "find another process": lambda: [n for n in os.listdir("/proc") if n.isdigit() and n != "1"][0],
    "trace the daemon": lambda: system_call(libc.ptrace(16, DAEMON, 0, 0)),
    "write beside the app": lambda: pathlib.Path("/app/x").write_text("x"),
    "write into Tidegate": lambda: pathlib.Path(PACKAGE, "x.py").write_text("x"),
    "write to the root": lambda: pathlib.Path("/x").write_text("x"),
    "set the core pattern": lambda: pathlib.Path("/proc/sys/kernel/core_pattern").write_text("|x"),
    "make the root writable": lambda: system_call(libc.mount(None, b"/", None, 32, None)),
    "become root": lambda: os.setuid(0),
    "open a namespace": lambda: system_call(libc.unshare(0x10000000)),
    "allocate": lambda: bytearray(4 << 30),
    "allocate shared memory": memory_shared,
    "write a large file": file_large,
    "allocate through the scratch folder": memory_in_scratch,
    "raise its limit": lambda: __import__("resource").setrlimit(2, (1 << 40, 1 << 40)),
}
outcomes = {}
for name, attack in attacks.items():
    try:
        outcomes[name] = f"DONE {attack()}"
    except (OSError, MemoryError, ValueError, IndexError) as error:
        outcomes[name] = f"refused: {error!r}"
outcomes["environment"] = dict(os.environ)
links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
outcomes["descriptors"] = sorted(os.readlink(link) for link in links if os.path.lexists(link))
outcomes["thread"] = threading.Thread(target=int).start()
raise RuntimeError(json.dumps(outcomes) + "END")
"""


def outcomes_of(failure):
    text = failure.detail
    return json.loads(text[text.index("{") : text.index("END")])


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "site.key").write_text("PRIVATE")
    (folder / "ledger.db").write_text("LEDGER")
    return folder


@pytest.fixture
def full_sandbox():
    report = asyncio.run(probe())
    if report.missing:
        pytest.skip(f"this machine cannot give the whole sandbox: {report.notes}")


def attack(tmp_path, site, listener, unix_path, covered):
    facts = {
        "SITE": str(site),
        "PORT": listener.getsockname()[1],
        "UNIX": str(unix_path),
        "DAEMON": os.getpid(),
        "PACKAGE": str(Path(child.__file__).parents[1]),
        "COVERED": str(covered),
    }
    head = "\n".join(f"{name} = {value!r}" for name, value in facts.items())
    app = write_app(tmp_path, task="import os\n" + head + ATTACKS)
    hidden = (site, covered)

    async def scenario():
        trainer = make_trainer(
            app, serves=STEPS, mode=SandboxMode.REQUIRED, hidden=hidden, memory_mib=2048
        )
        with pytest.raises(TrainerFailure) as caught:
            await trainer.start()
        return caught.value

    return outcomes_of(asyncio.run(scenario()))


@pytest.mark.usefixtures("full_sandbox")
def test_a_hostile_app_gets_hold_of_nothing(tmp_path, site, monkeypatch):
    monkeypatch.setenv("TIDEGATE_TEST_SECRET", "hush")
    covered = Path(pytest.__file__).parent
    unix_path = tmp_path / "unix.sock"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(unix_path))
        unix.listen()
        outcomes = attack(tmp_path, site, listener, unix_path, covered)
    environment = outcomes.pop("environment")
    descriptors = outcomes.pop("descriptors")
    assert outcomes.pop("thread") is None  # threads of one's own are allowed
    assert [name for name, said in outcomes.items() if not said.startswith("refused")] == []
    assert len(outcomes) == 30
    assert "TIDEGATE_TEST_SECRET" not in environment
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    kinds = [name.partition(":")[0] for name in descriptors]
    assert [kind for kind in kinds if kind != "/dev/null"] == ["/memfd", "socket"]
    assert (site / "site.key").read_text() == "PRIVATE"


WITHOUT_NAMESPACES = """
import os, sys
import tidegate.confine.linux_calls, tidegate.confine.sandbox
def refuse(*arguments):
    raise PermissionError(1, "Operation not permitted")
tidegate.confine.linux_calls.unshare = refuse
if sys.argv.pop(1) == "no-landlock":
    tidegate.confine.sandbox.restrict_files = refuse
from edge_node.trainer.process import main
os._exit(main(sys.argv[1:]))
"""
FALLBACK = """
import json, mmap, pathlib, signal, socket, subprocess
outcomes = {}
for name, attack in {
    "socket": lambda: socket.socket(),
    "fork": os.fork,
    "program": lambda: subprocess.run(["/bin/true"]),
    "kill": lambda: os.kill(DAEMON, signal.SIGKILL),
    "allocate": lambda: bytearray(4 << 30),
    "shared memory": lambda: mmap.mmap(-1, 1 << 20),
    "file: read the key": lambda: pathlib.Path(SITE, "site.key").read_text(),
    "file: read the daemon": lambda: pathlib.Path(f"/proc/{DAEMON}/environ").read_bytes(),
    "file: list processes": lambda: os.listdir("/proc"),
    "file: list the site": lambda: os.listdir(SITE),
    "file: read passwords": lambda: pathlib.Path("/etc/passwd").read_text(),
    "file: write": lambda: pathlib.Path(SITE, "x").write_text("x"),
}.items():
    try:
        outcomes[name] = f"DONE {attack()}"
    except (OSError, MemoryError) as error:
        outcomes[name] = f"refused: {error!r}"
raise RuntimeError(json.dumps(outcomes) + "END")
"""


def leave_out(monkeypatch, landlock):
    program = ("-I", "-B", "-c", WITHOUT_NAMESPACES, landlock)
    monkeypatch.setattr(start, "_program", lambda _: program)


def attack_the_fallback(tmp_path, site):
    async def scenario():
        trainer = make_trainer(write_app(tmp_path), serves=STEPS, hidden=(site,))
        report = await trainer.start()
        await trainer.stop()
        facts = f"import os\nDAEMON = {os.getpid()}\nSITE = {str(site)!r}\n"
        app = write_app(tmp_path, task=facts + FALLBACK)
        with pytest.raises(TrainerFailure) as caught:
            await make_trainer(app, serves=STEPS, memory_mib=2048, hidden=(site,)).start()
        return report, outcomes_of(caught.value)

    report, outcomes = asyncio.run(scenario())
    return report, {name for name, said in outcomes.items() if not said.startswith("refused")}


def test_without_namespaces_landlock_hides_the_site(tmp_path, site, monkeypatch):
    leave_out(monkeypatch, "landlock")
    report, done = attack_the_fallback(tmp_path, site)
    if not report.filesystem:
        pytest.skip(f"no Landlock on this machine: {report.notes}")
    assert report.missing == ()
    assert done == set()


def test_a_hidden_folder_inside_a_shown_one_is_told_where_it_cannot_be_covered(
    tmp_path, monkeypatch
):
    leave_out(monkeypatch, "landlock")
    inside = Path(pytest.__file__).parent

    async def scenario():
        trainer = make_trainer(write_app(tmp_path), serves=STEPS, hidden=(inside,))
        report = await trainer.start()
        await trainer.stop()
        return report

    report = asyncio.run(scenario())
    assert not report.filesystem
    assert "visible" in " ".join(report.notes)


def test_without_landlock_too_the_rest_holds_and_the_report_says_so(tmp_path, site, monkeypatch):
    leave_out(monkeypatch, "no-landlock")
    report, done = attack_the_fallback(tmp_path, site)
    assert report.missing == ("filesystem", "process")
    assert "user.max_user_namespaces" in " ".join(report.notes)
    assert all(name.startswith("file: ") for name in done)


def test_required_refuses_before_a_line_of_the_app_runs(tmp_path, monkeypatch):
    leave_out(monkeypatch, "no-landlock")
    log = tmp_path / "log"
    app = write_app(tmp_path, task="print('the app ran')\n" + LINEAR)

    async def scenario():
        trainer = make_trainer(app, serves=STEPS, mode=SandboxMode.REQUIRED, log_path=log)
        with pytest.raises(UsageError) as caught:
            await trainer.start()
        return str(caught.value)

    said = asyncio.run(scenario())
    assert "missing: filesystem, process" in said
    assert "best-available" in said
    assert "the app ran" not in log.read_text()


def test_the_report_names_what_is_missing():
    assert ALL.missing == ()
    partial = SandboxReport(
        network=True, filesystem=False, process=False, memory=True, syscalls=True, notes=("why",)
    )
    assert partial.missing == ("filesystem", "process")


def test_the_probe_agrees_with_a_trainer(tmp_path):
    async def scenario():
        trainer = make_trainer(write_app(tmp_path))
        report = await trainer.start()
        await trainer.stop()
        return report, await probe()

    started, probed = asyncio.run(scenario())
    assert started == probed


def test_the_supervisor_stays_light():
    # It forks after importing the module: what that module imports, every supervisor keeps.
    code = (
        "import sys, edge_node.trainer.process\n"
        "heavy = {'numpy', 'torch', 'flwr', 'asyncio', 'cryptography', 'ssl'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-I", "-B", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("jailed", [True, False])
def test_ranks_have_no_network_of_their_own_without_files_of_their_own(jailed):
    # They meet at a file: in the machine's own /tmp anybody could have put it there.
    progress = sandbox._Progress(loopback=True, jailed=jailed)
    assert sandbox.Sandbox(SandboxPlan("/app", 64), progress).loopback is jailed
