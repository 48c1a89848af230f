"""Make the Linux system calls that confine a process and that Python does not offer.

Each function makes one call and raises OSError with its errno. The numbers are the kernel's, from
its user-space headers; they are the same on every machine but where a table says otherwise.
"""

import ctypes
import fcntl
import os
import platform
import socket
import struct
from enum import IntFlag

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
# No rights for uid 0, none kept over setuid, none raised; each locked.
_SECUREBITS = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80
_CAPABILITY_VERSION_3 = 0x20080522
_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MNT_DETACH = 2
_SET_INTERFACE_FLAGS = 0x8914
_INTERFACE_UP = 1
# By machine: pivot_root, capset, seccomp.
_NUMBERS = {"x86_64": (155, 126, 317), "aarch64": (41, 91, 277)}


class Namespace(IntFlag):
    """What ``unshare`` can give a process of its own."""

    MOUNT = 0x00020000
    UTS = 0x04000000
    IPC = 0x08000000
    USER = 0x10000000
    PID = 0x20000000
    NETWORK = 0x40000000


class MountFlag(IntFlag):
    """Flags of ``mount``."""

    READ_ONLY = 0x1
    NO_SUID = 0x2
    NO_DEVICES = 0x4
    NO_EXEC = 0x8
    BIND = 0x1000
    RECURSIVE = 0x4000
    PRIVATE = 0x40000


class MountAttribute(IntFlag):
    """Attributes of ``mount_setattr``."""

    READ_ONLY = 0x1
    NO_SUID = 0x2
    NO_DEVICES = 0x4


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class SockFprog(ctypes.Structure):
    """A filter program as the kernel takes it: instruction count and address."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def unshare(namespaces: Namespace) -> None:
    """Give this process namespaces of its own."""
    _check(_libc.unshare(ctypes.c_int(namespaces)), "unshare")


def mount(
    source: str | None,
    target: str,
    kind: str | None = None,
    flags: MountFlag = MountFlag(0),  # noqa: B008 - a number
    options: str = "",
) -> None:
    """Mount a file system or, with BIND, show a folder or file at a second place."""
    result = _libc.mount(
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        options.encode(),
    )
    _check(result, f"mount {target}")


def restrict_mount(target: str, attributes: MountAttribute, *, recursive: bool = True) -> None:
    """Add restrictions to a mount and, if recursive, to all below it (Linux 5.12 or newer)."""
    attr = _MountAttr(attr_set=attributes)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        ctypes.byref(attr),
        ctypes.c_size_t(ctypes.sizeof(attr)),
    )
    _check(result, f"mount_setattr {target}")


def enter_root(folder: str) -> None:
    """Make a mounted folder the root and let go of the old one for good."""
    pivot_root, _, _ = _numbers()
    os.chdir(folder)
    # With both arguments alike the old root lies on top of the new one and is taken off it.
    here = ctypes.c_char_p(b".")
    _check(_libc.syscall(ctypes.c_long(pivot_root), here, here), "pivot_root")
    _check(_libc.umount2(here, ctypes.c_int(_MNT_DETACH)), "umount2")
    os.chdir("/")


def raise_loopback() -> None:
    """Switch on the loopback interface of this process' own network namespace."""
    request = struct.pack("16sH22x", b"lo", _INTERFACE_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, request)


def die_with_parent(signal_number: int) -> None:
    """Have the kernel signal this process when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def forbid_new_privileges() -> None:
    """Make set-user-id files and file capabilities powerless for this process, for good."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability, and the means to get one back."""
    _, capset, _ = _numbers()
    _ignore_refusal(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    _ignore_refusal(_PR_SET_SECUREBITS, _SECUREBITS)
    capability = 0
    while _libc.prctl(_PR_CAPBSET_READ, ctypes.c_ulong(capability), *_zeros(3)) >= 0:
        _ignore_refusal(_PR_CAPBSET_DROP, capability)
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _check(_libc.syscall(ctypes.c_long(capset), header, data), "capset")


def install_filter(program: bytes) -> None:
    """Put a system call filter on every thread of this process.

    Args:
        program: Instructions of eight bytes each (see ``tidegate.confine.syscall_filter``).
    """
    _, _, seccomp = _numbers()
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = SockFprog(len(program) // 8, ctypes.addressof(buffer))
    set_mode_filter, all_threads = ctypes.c_uint(1), ctypes.c_uint(1)
    number = ctypes.c_long(seccomp)
    result = _libc.syscall(number, set_mode_filter, all_threads, ctypes.byref(fprog))
    _check(result, "seccomp")


def system_call(number: int, *arguments: object) -> int:
    """Make a call by its number, arguments as ctypes values, and give its result."""
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return result


def _numbers() -> tuple[int, int, int]:
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise OSError(38, f"the system call numbers of {machine} are not known here")
    return _NUMBERS[machine]


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), *_zeros(3)), f"prctl {option}")


def _ignore_refusal(option: int, value: int) -> None:
    # Refused where the process has no such right to give up: a normal user without namespaces.
    _libc.prctl(option, ctypes.c_ulong(value), *_zeros(3))


def _zeros(count: int) -> list[ctypes.c_ulong]:
    return [ctypes.c_ulong(0)] * count


def _check(result: int, what: str) -> None:
    # seccomp gives the id of a thread that could not follow as a positive result.
    if result != 0:
        code = ctypes.get_errno() if result < 0 else 1
        raise OSError(code, f"{what}: {os.strerror(code)}")
