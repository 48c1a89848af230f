"""Give the trainer a root of its own that holds the interpreter, Tidegate and the app, read-only.

An allow list: what is not named here does not exist for the app. The data, keys and ledger of the
site are nowhere in it; folders that must stay hidden although they lie inside something shown (a
site folder in ``/usr/local``, say) are covered by empty ones.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from tidegate.confine.linux_calls import (
    MountAttribute,
    MountFlag,
    enter_root,
    mount,
    restrict_mount,
)

APP_ROOT = "/app"
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
SYSTEM_FILES = ("/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
CPU_FACTS = ("/sys/devices/system/cpu",)
ACCELERATOR_PLACES = ("/sys", "/opt")
_BASE = Path("/tmp")  # noqa: S108 - only a place to mount on, in a namespace of our own
_PROC_FACTS = ("cpuinfo", "meminfo")
_HARMLESS = MountFlag.NO_SUID | MountFlag.NO_DEVICES
_SHARED_MEMORY_MIB = 64


def enter_jail(
    shown: Iterable[str],
    app_folder: str,
    hidden: Iterable[str],
    accelerator_nodes: Iterable[str],
    scratch_mib: int,
) -> None:
    """Build the root and move into it.

    The process must be alone in its mount namespace and hold CAP_SYS_ADMIN over it.

    Args:
        shown: Folders and files to show at their own places.
        app_folder: Shown as ``/app``.
        hidden: Folders and files to cover where they lie inside a shown one.
        accelerator_nodes: Device files to show; none means a process that computes on the CPU.
        scratch_mib: Size of its ``/tmp``.

    Raises:
        OSError: The kernel refuses a step; this process still sees the old root then.
    """
    mount(None, "/", None, MountFlag.RECURSIVE | MountFlag.PRIVATE)
    nodes = tuple(accelerator_nodes)
    wanted = [*SYSTEM_FOLDERS, *SYSTEM_FILES, *shown, *nodes]
    wanted += ACCELERATOR_PLACES if nodes else CPU_FACTS
    # Opened before the new root covers anything they lie under.
    sources = {path: os.open(path, os.O_PATH) for path in _outermost(wanted)}
    app = os.open(app_folder, os.O_PATH)
    facts = {name: os.open(f"/proc/{name}", os.O_PATH) for name in _PROC_FACTS}
    _mount_empty_root(scratch_mib)
    for path, source in sources.items():
        _show(source, _placed(path), devices_work=path.is_relative_to("/dev"))
    _show(app, _placed(Path(APP_ROOT)), devices_work=False)
    _mount_proc(facts)
    for name in hidden:
        for path in {Path(name), Path(name).resolve()}:
            _cover(path, sources)
    restrict_mount(str(_BASE), MountAttribute.READ_ONLY, recursive=False)
    for descriptor in (*sources.values(), app, *facts.values()):
        os.close(descriptor)
    enter_root(str(_BASE))


def existing_nodes(patterns: Iterable[str]) -> list[str]:
    """List the device files under /dev that patterns such as ``dri/*`` match."""
    return sorted(str(node) for pattern in patterns for node in Path("/dev").glob(pattern))


def _mount_empty_root(scratch_mib: int) -> None:
    mount("tmpfs", str(_BASE), "tmpfs", _HARMLESS, "size=4m,mode=755")
    sizes_mib = {"/tmp": scratch_mib, "/dev/shm": _SHARED_MEMORY_MIB}  # noqa: S108 - its own
    for name, size_mib in sizes_mib.items():  # before the rest: what is shown may lie under /tmp
        place = _placed(Path(name))
        place.mkdir(parents=True)
        options = f"size={size_mib}m,mode=1777"
        mount("tmpfs", str(place), "tmpfs", _HARMLESS | MountFlag.NO_EXEC, options)
    for folder in map(Path, SYSTEM_FOLDERS):
        if folder.is_symlink():
            _placed(folder).symlink_to(folder.readlink())


def _placed(path: Path) -> Path:
    return _BASE / path.relative_to("/")


def _outermost(paths: Iterable[str]) -> list[Path]:
    """Give the existing paths, by their given and their real names, none inside another."""
    given = [Path(path) for path in paths]
    links = {Path(folder) for folder in SYSTEM_FOLDERS if Path(folder).is_symlink()}
    kept: list[Path] = []
    for path in sorted({*given, *(path.resolve() for path in given)}):
        if path.exists() and path not in links and not _inside(path, kept):
            kept.append(path)
    return kept


def _inside(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _show(source: int, target: Path, *, devices_work: bool) -> None:
    name = Path(f"/proc/self/fd/{source}")
    if name.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(str(name), str(target), None, MountFlag.BIND | MountFlag.RECURSIVE)
    restrictions = MountAttribute.READ_ONLY | MountAttribute.NO_SUID
    if not devices_work:
        restrictions |= MountAttribute.NO_DEVICES
    restrict_mount(str(target), restrictions)


def _mount_proc(facts: dict[str, int]) -> None:
    target = _placed(Path("/proc"))
    target.mkdir()
    try:
        # Read-only: for a real uid 0 the files under /proc/sys are writable without capabilities.
        flags = MountFlag.READ_ONLY | MountFlag.NO_EXEC | _HARMLESS
        mount("proc", str(target), "proc", flags)
    except PermissionError:
        # In many containers no new /proc may be mounted; two files suffice for torch.
        for name, source in facts.items():
            _show(source, target / name, devices_work=False)


def _cover(path: Path, shown: Iterable[Path]) -> None:
    target = _placed(path)
    if not _inside(path, shown) or not target.exists():
        return  # not in the new root anyhow
    if target.is_dir():
        flags = MountFlag.READ_ONLY | _HARMLESS
        mount("tmpfs", str(target), "tmpfs", flags, "size=4k,mode=755")
    else:
        mount("/dev/null", str(target), None, MountFlag.BIND)
