"""Let atheris search for a frame that breaks an attempt of SA-1.

    python -m tests.fuzz.fuzz_frames [-runs=N | -max_total_time=S] [folder for what is found]

The first byte says what the others stand in for: one of the frames of an attempt (the seeds in
``tests/vectors/frames``), or, above them, the bytes of each message that has a converter. Any other
outcome than an exact sum or none, with a named reason, is a crash, as
``tests.support.wire_exchange.check_nothing_broke`` says.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tidegate.convert", "privacy.secagg"]):
    from tests.support.wire_exchange import WireExchange, check_nothing_broke
    from tests.support.wire_receivers import RECEIVERS, receive

from tests.vectors.write_frames import FOLDER, SITES, frames

N_FRAMES = len(frames())


def one_input(data: bytes) -> None:
    """Try one input of the fuzzer."""
    if not data:
        return
    number, raw = data[0], data[1:]
    if number >= N_FRAMES:
        for kind, take in RECEIVERS:
            receive(kind, take, raw)
        return
    position = iter(range(10_000))

    def alter(frame):
        return (raw,) if next(position) == number else (frame.data,)

    check_nothing_broke(WireExchange(n=SITES, alter=alter).run())


def write_seeds(folder: Path) -> None:
    """Write the frames with the byte that says where they belong."""
    for number, path in enumerate(sorted(FOLDER.glob("*.bin"))):
        (folder / path.stem).write_bytes(bytes([number]) + path.read_bytes())
        (folder / f"{path.stem}-converted").write_bytes(b"\xff" + path.read_bytes())


def main() -> None:
    with tempfile.TemporaryDirectory() as seeds:
        write_seeds(Path(seeds))
        options = [a for a in sys.argv[1:] if a.startswith("-")]
        found = [a for a in sys.argv[1:] if not a.startswith("-")]
        arguments = [sys.argv[0], *options, "-max_len=8192", *found, seeds]
        atheris.Setup(arguments, one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
