"""Restrict what a process may open to a list of places, where no namespace can be had.

Landlock is the kernel's access control for the unprivileged (Linux 5.13 and newer; containers
usually leave it open). It cannot take a folder out of one that is allowed, so what must stay hidden
must not lie inside what is shown; and it does not hide names from ``stat``.
"""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from tidegate.confine.linux_calls import system_call

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_VERSION_QUERY = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
# Rights on files that each version of the interface knows: the first `bits` of them.
_BITS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_BITS_OF_LATER_VERSIONS = 16


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def restrict_files(readable: Iterable[str], writable: Iterable[str] = ()) -> None:
    """Let this thread, and those it starts, open nothing but the given places.

    The thread must have given up new privileges (``no_new_privs``).

    Args:
        readable: Folders with all below them, and files; places that do not exist are left out.
        writable: Files that may also be written to, devices mostly.

    Raises:
        OSError: The kernel has no Landlock, or it is switched off.
    """
    handled = ctypes.c_uint64((1 << _rights()) - 1)
    ruleset = system_call(_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), _uint(0))
    try:
        for path in map(Path, readable):
            access = _READ_FILE | _EXECUTE | (_READ_DIR if path.is_dir() else 0)
            _allow(ruleset, path, access)
        for path in map(Path, writable):
            _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
        system_call(_RESTRICT_SELF, ctypes.c_int(ruleset), _uint(0))
    finally:
        os.close(ruleset)


def _rights() -> int:
    version = system_call(_CREATE_RULESET, None, ctypes.c_size_t(0), _uint(_VERSION_QUERY))
    return _BITS_BY_VERSION.get(version, _BITS_OF_LATER_VERSIONS)


def _allow(ruleset: int, path: Path, access: int) -> None:
    if not path.exists():
        return
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(access, descriptor)
        arguments = _uint(_PATH_BENEATH), ctypes.byref(rule), _uint(0)
        system_call(_ADD_RULE, ctypes.c_int(ruleset), *arguments)
    finally:
        os.close(descriptor)


def _uint(value: int) -> ctypes.c_uint:
    return ctypes.c_uint(value)
