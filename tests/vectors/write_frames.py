"""Write every frame of one honest attempt of SA-1: vectors for others, seeds for the fuzzer.

    python -m tests.vectors.write_frames

``tests/vectors/frames/NN-direction-site-Message.bin`` is the frame as it goes over the session: a
serialised ``SessionRequest`` (up) or ``SessionResponse`` (down). Seeds, signing keys and vectors of
the five sites are those of ``tests/support/secagg_harness.py``; nothing in a frame is random.
"""

from pathlib import Path

from tests.support.wire_exchange import WireExchange

FOLDER = Path(__file__).parent / "frames"
SITES = 5


def frames() -> dict[str, bytes]:
    """Give each frame by its file's name."""
    exchange = WireExchange(n=SITES).run()
    return {
        f"{number:02}-{frame.direction}-{frame.index}-{frame.kind}.bin": frame.data
        for number, frame in enumerate(exchange.frames)
    }


def main() -> None:
    """Replace the folder's files."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.bin"):
        old.unlink()
    for name, data in frames().items():
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
