"""Write the system call filter of the trainer: what training has no use for is refused.

A deny list, not an allow list: torch and accelerator drivers call what no list foresees. It stands
behind the namespaces, which hold without it, and it alone keeps the app from starting processes and
from memory outside its limit. It is installed after the libraries are loaded, before the app is.

The program is classic BPF over ``struct seccomp_data`` (number at 0, architecture at 4, arguments
from 16 on, eight bytes each, low half first).
"""

import errno
import struct

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_X32_BIT = 0x40000000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_CLONE_THREAD = 0x00010000
_SHARED_ANONYMOUS = 0x01 | 0x20

# Name: number on (x86_64, aarch64); None where the machine has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes: start, trace, read, signal
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # large parts of the kernel that training does not need
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "personality": (135, 92),
    "shmget": (29, 194),
}
# Only without an accelerator, whose drivers may use them.
_DENIED_ON_CPU: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "memfd_create": (319, 279),
}
_SOCKET = (41, 198)
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_TGKILL = (234, 131)
_PRLIMIT = (302, 261)
_MMAP = (9, 222)
_AF_UNIX = 1


def filter_program(machine: str, process_id: int, *, accelerator: bool) -> bytes:
    """Write the filter for a machine.

    Args:
        machine: As ``platform.machine()`` says.
        process_id: The process that the filter is for: the only one it may signal.
        accelerator: Whether the process uses one: its driver may open local sockets and map
            shared memory, which the filter then leaves alone.

    Returns:
        Instructions of eight bytes each; empty where the machine's numbers are not known.
    """
    if machine not in _ARCHITECTURES:
        return b""
    column = list(_ARCHITECTURES).index(machine)
    rules = [_unless(_LOAD, 4, _ARCHITECTURES[machine]), _instruction(_LOAD, 0)]
    if machine == "x86_64":  # the same calls under other numbers
        rules += [_instruction(_IF_AT_LEAST, _X32_BIT, 0, 1), _refuse(errno.EPERM)]
    denied = _DENIED if accelerator else _DENIED | _DENIED_ON_CPU
    for numbers in denied.values():
        number = numbers[column]
        if number is not None:
            rules += [_instruction(_IF_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    # The flags of clone3 lie in memory where no filter sees them; glibc falls back to clone.
    rules += [_instruction(_IF_EQUAL, _CLONE3[column], 0, 1), _refuse(errno.ENOSYS)]
    rules.append(_only_if(_CLONE[column], 0, _CLONE_THREAD, mask=_CLONE_THREAD))
    rules.append(_only_if(_TGKILL[column], 0, process_id))
    rules.append(_only_if(_PRLIMIT[column], 0, 0))
    if accelerator:
        rules.append(_only_if(_SOCKET[column], 0, _AF_UNIX))
    else:
        # Shared anonymous memory is not counted by RLIMIT_DATA.
        rules.append(_never_if(_MMAP[column], 3, _SHARED_ANONYMOUS, mask=_SHARED_ANONYMOUS))
    rules.append(_instruction(_RETURN, _ALLOW))
    return b"".join(rules)


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, operand)


def _refuse(error: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _unless(load: int, offset: int, value: int) -> bytes:
    test = _instruction(_IF_EQUAL, value, 1, 0)
    return _instruction(load, offset) + test + _refuse(errno.EPERM)


def _only_if(number: int, argument: int, value: int, mask: int = 0xFFFFFFFF) -> bytes:
    return _argument_rule(number, argument, value, mask, allowed=True)


def _never_if(number: int, argument: int, value: int, mask: int) -> bytes:
    return _argument_rule(number, argument, value, mask, allowed=False)


def _argument_rule(number: int, argument: int, value: int, mask: int, *, allowed: bool) -> bytes:
    outcomes = [_instruction(_RETURN, _ALLOW), _refuse(errno.EPERM)]
    body = [
        _instruction(_LOAD, 16 + 8 * argument),
        _instruction(_AND, mask),
        _instruction(_IF_EQUAL, value, 0, 1),
        *(outcomes if allowed else reversed(outcomes)),
    ]
    return _instruction(_IF_EQUAL, number, 0, len(body)) + b"".join(body)
