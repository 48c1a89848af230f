"""A long, narrow line between two network namespaces: a process that is both of its ends.

    python -m benchmarks.delayed_link NAME_A NAME_B PID_B MBIT_PER_S ONE_WAY_MS

Linux's ``netem`` is often not at hand; this needs only TUN devices. NAME_A appears in the caller's
namespace and NAME_B in that of process PID_B; both take whole TCP super-packets with their checksum
left open (as a virtual machine's network card does), so that one copy carries up to 64 KiB and a
single Python process keeps up with some 2 Gbit/s. Each direction is a line by itself: a packet
leaves when the line is free, occupies it for its bits (a header for each 1,500-byte frame that it
stands for is counted), and arrives one delay later. What finds the queue full is dropped, as at a
router. Prints ``up`` when both devices are there; ends on SIGTERM, and the devices with it.
"""

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field

TUN = "/dev/net/tun"
MTU = 1500
_TUNSETIFF, _TUNSETOFFLOAD, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_OFFLOAD_CHECKSUM, _OFFLOAD_TCP4 = 0x01, 0x02
_VNET_BYTES = 10
_MOST_BYTES = _VNET_BYTES + (1 << 16)
_FRAME_HEADERS = 54
"""Ethernet, IPv4 and TCP without options: what each frame of a super-packet adds on a real line."""

_BURST = 32
"""Packets taken from one end before the other end and the clock are looked at."""


@dataclass
class Line:
    """One direction: packets in the order in which they arrive at the far end.

    Attributes:
        bytes_per_s: How fast the line takes bits.
        delay_s: From the last bit in to the last bit out.
        queue_bytes: How much may wait for the line before packets are dropped.
    """

    bytes_per_s: float
    delay_s: float
    queue_bytes: float
    free_at_s: float = 0.0
    dropped: int = 0
    on_the_way: deque[tuple[float, bytes]] = field(default_factory=deque)

    def put(self, packet: bytes, now_s: float) -> bool:
        """Send a packet (with its 10-byte virtual header) down the line; False where it is lost."""
        begin_s = max(now_s, self.free_at_s)
        size = wire_bytes(packet)
        if (begin_s - now_s) * self.bytes_per_s + size > self.queue_bytes:
            self.dropped += 1
            return False
        self.free_at_s = begin_s + size / self.bytes_per_s
        self.on_the_way.append((self.free_at_s + self.delay_s, packet))
        return True

    def arrived(self, now_s: float) -> list[bytes]:
        """Take what has come out at the far end by now."""
        out = []
        while self.on_the_way and self.on_the_way[0][0] <= now_s:
            out.append(self.on_the_way.popleft()[1])
        return out

    def next_s(self) -> float | None:
        """Say when the next packet comes out."""
        return self.on_the_way[0][0] if self.on_the_way else None


def wire_bytes(packet: bytes) -> int:
    """Count what a packet occupies on a real line: the headers of all its frames too."""
    segment = int.from_bytes(packet[4:6], sys.byteorder)
    size = len(packet) - _VNET_BYTES
    frames = 1 if not packet[1] or not segment else -(-size // segment)
    return size + frames * _FRAME_HEADERS


def queue_bytes(bytes_per_s: float, delay_s: float) -> float:
    """Give a router's queue: one and a half products of bandwidth and round trip, 192 KiB least."""
    return max(3 * 65_536.0, 1.5 * bytes_per_s * 2 * delay_s)


def carry(ends: tuple[int, int], lines: tuple[Line, Line], stop: list[bool]) -> None:
    """Carry packets both ways until told to stop; ``lines[k]`` leads away from ``ends[k]``."""
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    while not stop:
        waits_s = [due_s for line in lines if (due_s := line.next_s()) is not None]
        wait_s = min(waits_s) - time.monotonic() if waits_s else 1.0
        for end, _ in poll.poll(max(0.0, 1000 * wait_s)):
            line = lines[ends.index(end)]
            for _ in range(_BURST):
                try:
                    packet = os.read(end, _MOST_BYTES)
                except BlockingIOError:
                    break
                line.put(packet, time.monotonic())
        for line, far in zip(lines, reversed(ends), strict=True):
            for packet in line.arrived(time.monotonic()):
                # A full or vanished device loses the packet, as a full port of a router would.
                with contextlib.suppress(OSError):
                    os.write(far, packet)


def open_tun(name: str) -> int:
    """Make a TUN device in this process's namespace; it lives as long as the descriptor."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", name.encode(), flags))
    fcntl.ioctl(device, _TUNSETVNETHDRSZ, struct.pack("i", _VNET_BYTES))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _OFFLOAD_CHECKSUM | _OFFLOAD_TCP4)
    return device


def main() -> None:
    name_a, name_b, pid_b, mbit_per_s, one_way_ms = sys.argv[1:]
    rate, delay_s = float(mbit_per_s) * 1e6 / 8, float(one_way_ms) / 1000
    ends = open_tun(name_a), open_tun(name_b)
    move = ["ip", "link", "set", "dev", name_b, "netns", str(int(pid_b))]
    subprocess.run(move, check=True)
    stop: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the benchmark's, which then ends us
    print("up", flush=True)
    queue = queue_bytes(rate, delay_s)
    carry(ends, (Line(rate, delay_s, queue), Line(rate, delay_s, queue)), stop)


if __name__ == "__main__":
    main()
