"""The system call filter, run instruction by instruction as the kernel does."""

import errno
import struct

import pytest

from tidegate.confine.syscall_filter import filter_program

ALLOW = 0x7FFF0000
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OWN_PID = 4711


def run(program, architecture, number, arguments=()):
    """Interpret classic BPF over ``struct seccomp_data``; give the errno, 0 for allowed."""
    arguments = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, position = 0, 0
    while True:
        operation, if_true, if_false, operand = code[position]
        position += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                accumulator &= operand
            case 0x15:
                position += if_true if accumulator == operand else if_false
            case 0x35:
                position += if_true if accumulator >= operand else if_false
            case 0x06:
                return 0 if operand == ALLOW else operand & 0xFFFF
            case _:
                pytest.fail(f"unknown instruction {operation:#x}")


# Name: number on (x86_64, aarch64).
BOTH = {
    "read": (0, 63),
    "futex": (202, 98),
    "mmap": (9, 222),
    "socket": (41, 198),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fork": (57, None),
    "execve": (59, 221),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "memfd_create": (319, 279),
    "ptrace": (101, 117),
    "mount": (165, 40),
    "unshare": (272, 97),
}
NUMBERS = {
    machine: {name: pair[column] for name, pair in BOTH.items() if pair[column] is not None}
    for column, machine in enumerate(ARCHITECTURE)
}
AF_UNIX, AF_INET = 1, 2
THREAD = 0x3D0F00  # what glibc asks for when it starts a thread


@pytest.mark.parametrize("machine", list(NUMBERS))
@pytest.mark.parametrize("accelerator", [False, True])
def test_what_it_allows_and_refuses(machine, accelerator):
    program = filter_program(machine, OWN_PID, accelerator=accelerator)
    numbers = NUMBERS[machine]

    def call(name, *arguments):
        return run(program, ARCHITECTURE[machine], numbers[name], arguments)

    refused = errno.EPERM
    assert call("read") == call("futex") == 0
    assert call("clone", THREAD) == 0
    assert call("clone", 17) == refused  # SIGCHLD alone: a fork
    assert call("clone3") == errno.ENOSYS
    for name in {"fork", "execve", "kill", "ptrace", "mount", "unshare"} & numbers.keys():
        assert call(name) == refused, name
    assert call("tgkill", OWN_PID, 5, 6) == 0
    assert call("tgkill", 1, 1, 6) == refused
    assert call("prlimit64", 0) == 0
    assert call("prlimit64", 1) == refused
    assert call("socket", AF_INET) == refused
    assert call("socket", AF_UNIX) == (0 if accelerator else refused)
    assert call("memfd_create") == (0 if accelerator else refused)
    assert call("mmap", 0, 4096, 3, 0x22) == 0  # private, anonymous
    assert call("mmap", 0, 4096, 3, 0x01) == 0  # shared, of a file
    assert call("mmap", 0, 4096, 3, 0x21) == (0 if accelerator else refused)


def test_calls_of_another_architecture_are_refused():
    program = filter_program("x86_64", OWN_PID, accelerator=False)
    assert run(program, 0x40000003, 0) == errno.EPERM  # 32-bit: other numbers
    assert run(program, ARCHITECTURE["x86_64"], 0x40000000 + 41) == errno.EPERM  # x32


def test_an_unknown_machine_has_no_filter():
    assert filter_program("riscv64", OWN_PID, accelerator=False) == b""


def test_it_fits_the_kernels_limit():
    for machine in NUMBERS:
        assert len(filter_program(machine, 1, accelerator=False)) // 8 < 4096
