"""Keep a site's trainer process away from everything but the rows it is handed.

The app may be wrong or hostile, and it sees raw records. What it could do with them is therefore
taken away twice over: by namespaces (no network, a root without the site's files, no other
process), and by a system call filter, limits and the loss of every privilege. These hold even where
a machine allows no namespaces, and Landlock then takes the place of the new root. `enter` confines
a freshly started process before it loads a library; `seal` adds the filter once the libraries are
loaded and before the app is.

Nothing here hides the rows from the app or bounds what its gradients say: that is the clip's and
the noise's work, in another process (privacy.md, "Who is trusted with the clip").

This file and what it imports stay free of heavy libraries: the process they confine forks.
"""

import os
import platform
import resource
import select
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import privacy
import tidegate
from tidegate.confine import jail_root, linux_calls
from tidegate.confine.landlock import restrict_files
from tidegate.confine.linux_calls import Namespace
from tidegate.confine.syscall_filter import filter_program

_INNER_ID = 1000  # any but 0: files and scripts of the app then see a plain user
_NO_NAMESPACE = Namespace(0)
_MIB = 1 << 20
_MAX_THREADS = 256


class SandboxMode(StrEnum):
    """How a site wants its trainer confined: the words of its configuration."""

    REQUIRED = "required"
    BEST_AVAILABLE = "best-available"


@dataclass(frozen=True)
class SandboxReport:
    """Which protections hold for a trainer process, for logs and ``edge-node show-config``.

    Attributes:
        network: No socket can be made, or none leads anywhere.
        filesystem: Only the interpreter, Tidegate and the app are in sight, all read-only.
        process: No other process can be seen or signalled, and none can be started.
        memory: What it may allocate is bounded.
        syscalls: A filter refuses system calls that training has no use for.
        notes: Why a protection is missing, one sentence each; safe to log.
    """

    network: bool
    filesystem: bool
    process: bool
    memory: bool
    syscalls: bool
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the names of the protections that are not in force."""
        return tuple(name for name, held in asdict(self).items() if held is False)


@dataclass(frozen=True)
class SandboxPlan:
    """What a trainer process is to be confined to.

    Attributes:
        app_folder: The unpacked app.
        hidden: The site's own folders.
        memory_mib: What it may allocate.
        accelerator_nodes: Device files it needs; none for the CPU.
        readable: Folders and files beyond the app that it may read: the package that runs in it,
            and what the site's own configuration shows to an app (data of an unchanged Flower
            app, base models). Each must exist.
        processes: How many processes will share the sandbox; more than one are given the loopback
            of their own network namespace to talk by.
        scratch_mib: The most that it may write to its own ``/tmp``: memory beyond ``memory_mib``.
        max_file_mib: The longest file that it may write, what it prints included.
    """

    app_folder: str
    memory_mib: int
    hidden: tuple[str, ...] = ()
    accelerator_nodes: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    processes: int = 1
    scratch_mib: int = 64
    max_file_mib: int = 16


@dataclass
class _Progress:
    """What has been reached on the way into the sandbox."""

    namespaces: Namespace = _NO_NAMESPACE
    jailed: bool = False
    filesystem: bool = False
    memory: bool = False
    loopback: bool = False
    notes: list[str] = field(default_factory=list)


class Sandbox:
    """The confinement of this process, entered in two steps."""

    def __init__(self, plan: SandboxPlan, progress: _Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._filtered = False

    @property
    def app_folder(self) -> str:
        """Return where the app lies for this process."""
        return jail_root.APP_ROOT if self._progress.jailed else self._plan.app_folder

    @property
    def loopback(self) -> bool:
        """Return whether several processes can talk by a network that is only theirs.

        They meet at a file, so their ``/tmp`` must be theirs alone as well.
        """
        return self._progress.loopback and self._progress.jailed

    def seal(self) -> SandboxReport:
        """Install the system call filter on all threads and say what is in force.

        To be called after the libraries are loaded (they look at files and start threads as they
        come up) and before any line of the app runs.
        """
        accelerator = bool(self._plan.accelerator_nodes)
        program = filter_program(platform.machine(), os.getpid(), accelerator=accelerator)
        if program:
            self._install(program)
        else:
            note = f"no system call filter is known for {platform.machine()} machines"
            self._progress.notes.append(note)
        return self._report(sockets_refused=self._filtered and not accelerator)

    def _install(self, program: bytes) -> None:
        try:
            linux_calls.install_filter(program)
            self._filtered = True
        except OSError as error:
            self._progress.notes.append(f"no system call filter: {error.strerror}")

    def _report(self, *, sockets_refused: bool) -> SandboxReport:
        progress = self._progress
        # A root of its own comes with a process namespace, and Landlock leaves of /proc only the
        # process itself; the filter refuses signals and new processes.
        return SandboxReport(
            network=Namespace.NETWORK in progress.namespaces or sockets_refused,
            filesystem=progress.filesystem,
            process=progress.filesystem and self._filtered,
            memory=progress.memory,
            syscalls=self._filtered,
            notes=tuple(progress.notes),
        )


def enter(plan: SandboxPlan, lifeline: int, trainer_only: tuple[int, ...]) -> Sandbox:
    """Confine this process, which must be fresh: one thread, no library loaded, no secret read.

    The process forks. The first becomes a supervisor that only waits: it ends the second, and with
    it the second's whole process namespace, when the lifeline closes because the daemon let go of
    it or died, however it died. Only the second returns from here.

    Args:
        plan: What to confine to.
        lifeline: Read end of a pipe whose other end only the daemon holds.
        trainer_only: File descriptors that the supervisor must let go of.

    Returns:
        The sandbox, short of its filter; what could not be had is in the report of `seal`.
    """
    progress = _Progress()
    _take_namespaces(progress)
    pid = os.fork()
    if pid:
        _supervise(pid, lifeline, trainer_only)
    os.close(lifeline)
    linux_calls.die_with_parent(signal.SIGKILL)
    if os.getppid() == 1:  # the supervisor died before the line above
        os._exit(1)
    os.chdir("/")
    if Namespace.MOUNT in progress.namespaces:
        _take_root(plan, progress)
    if plan.processes > 1 and Namespace.NETWORK in progress.namespaces:
        _take_loopback(progress)
    _take_limits(plan, progress)
    linux_calls.drop_capabilities()
    linux_calls.forbid_new_privileges()
    if not progress.jailed:
        _restrict_files(plan, progress)
    return Sandbox(plan, progress)


def _take_namespaces(progress: _Progress) -> None:
    own = Namespace.MOUNT | Namespace.UTS | Namespace.IPC | Namespace.PID | Namespace.NETWORK
    user_id, group_id = os.geteuid(), os.getegid()
    try:
        linux_calls.unshare(own | Namespace.USER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/gid_map", f"{_INNER_ID} {group_id} 1")
        _write("/proc/self/uid_map", f"{_INNER_ID} {user_id} 1")
        progress.namespaces = own | Namespace.USER
    except OSError as error:
        progress.notes.append(
            f"no user namespace: {error.strerror}; allow unprivileged user namespaces "
            "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0)"
        )
        if user_id == 0:
            _take_namespaces_as_root(own, progress)


def _take_namespaces_as_root(own: Namespace, progress: _Progress) -> None:
    try:
        linux_calls.unshare(own)
        progress.namespaces = own
        progress.notes.clear()
    except OSError as error:
        progress.notes.append(f"no namespaces as root either: {error.strerror}")


def _take_root(plan: SandboxPlan, progress: _Progress) -> None:
    try:
        shown = _code_places(plan)
        nodes = plan.accelerator_nodes
        jail_root.enter_jail(shown, plan.app_folder, plan.hidden, nodes, plan.scratch_mib)
        progress.jailed = progress.filesystem = True
    except OSError as error:
        progress.notes.append(f"no root of its own: {error.strerror}")


def _take_loopback(progress: _Progress) -> None:
    try:
        linux_calls.raise_loopback()
        progress.loopback = True
    except OSError as error:
        progress.notes.append(f"no loopback for several processes: {error.strerror}")


def _restrict_files(plan: SandboxPlan, progress: _Progress) -> None:
    shown = [*jail_root.SYSTEM_FOLDERS, *_code_places(plan), plan.app_folder]
    shown += jail_root.ACCELERATOR_PLACES if plan.accelerator_nodes else jail_root.CPU_FACTS
    facts = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo")
    try:
        devices = ("/dev/null", *plan.accelerator_nodes)
        restrict_files((*shown, *jail_root.SYSTEM_FILES, *facts), devices)
    except OSError as error:
        progress.notes.append(f"the site's files stay visible, no Landlock: {error.strerror}")
        return
    # Nothing is writable, and libraries look for a place to write to while they are loaded.
    tempfile.tempdir = os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/"
    inside = [path for path in plan.hidden if _is_inside(Path(path), shown)]
    progress.filesystem = not inside
    progress.notes.extend(
        f"{path} stays visible: it lies inside a folder that the trainer needs" for path in inside
    )


def _is_inside(path: Path, folders: list[str]) -> bool:
    return any(path.resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


def _code_places(plan: SandboxPlan) -> list[str]:
    """Name what a Python process needs: Tidegate's packages lie outside in a source tree."""
    packages = [privacy.__path__[0], tidegate.__path__[0], *plan.readable]
    return [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve()), *packages]


def _take_limits(plan: SandboxPlan, progress: _Progress) -> None:
    accelerator = bool(plan.accelerator_nodes)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: plan.max_file_mib * _MIB,
        resource.RLIMIT_NOFILE: 4096 if accelerator else 256,
    }
    if Namespace.USER in progress.namespaces:  # elsewhere the user's other processes count too
        threads = 16 * _MAX_THREADS if accelerator else _MAX_THREADS
        limits[resource.RLIMIT_NPROC] = threads * plan.processes
    for name, value in limits.items():
        _limit(name, value)
    # Address space would also count what drivers only reserve; this counts private memory in use.
    _limit(resource.RLIMIT_DATA, plan.memory_mib * _MIB)
    progress.memory = True


def _limit(name: int, value: int) -> None:
    _, hard = resource.getrlimit(name)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(name, (bound, bound))


def _supervise(pid: int, lifeline: int, trainer_only: tuple[int, ...]) -> NoReturn:
    """Wait until the trainer ends or the lifeline closes, end the trainer, and exit as it did."""
    for descriptor in (0, 1, 2, *trainer_only):
        os.close(descriptor)
    trainer = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)  # closing shows as POLLHUP; nothing is ever written
    poll.register(trainer, select.POLLIN)
    while not poll.poll():
        pass
    signal.pidfd_send_signal(trainer, signal.SIGKILL)  # harmless to one that has ended
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="ascii")
