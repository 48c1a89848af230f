"""Write every frame of one honest attempt of SA-1: vectors for others, seeds for the fuzzer.

    python -m tests.vectors.write_frames

``tests/vectors/frames/NN-direction-site-Message.bin`` is the frame as it goes over the session: a
serialised ``SessionRequest`` (up) or ``SessionResponse`` (down). Seeds, signing keys and vectors of
the five sites are those of ``tests/support/secagg_harness.py``; nothing in a frame is random.
``retry-proof.bin`` beside it is what the fifth site is sent once three have signed the abort.
"""

from pathlib import Path

from privacy.secagg.messages import AbortRequest, RetryProof, RetryVote
from tests.support.secagg_harness import Federation
from tests.support.wire_exchange import WireExchange
from tidegate import convert

FOLDER = Path(__file__).parent / "frames"
SITES = 5
RETRY_PROOF = Path(__file__).parent / "retry-proof.bin"


def frames() -> dict[str, bytes]:
    """Give each frame by its file's name."""
    exchange = WireExchange(n=SITES).run()
    return {
        f"{number:02}-{frame.direction}-{frame.index}-{frame.kind}.bin": frame.data
        for number, frame in enumerate(exchange.frames)
    }


def retry_proof() -> bytes:
    """Give the proof that frees the fifth of these sites after three aborts of one attempt."""
    federation = Federation(SITES, length=4)
    federation.upload_all()
    ctx = federation.context.digest()
    votes = []
    for site in federation.sites[:3]:
        (signed,) = site.feed(AbortRequest(ctx, "stop"))
        votes.append(RetryVote(site.me, signed.signature))
    proof = RetryProof(ctx, tuple(votes))
    return convert.aggregator_message_to_wire(proof).SerializeToString()


def main() -> None:
    """Replace the folder's files, and the proof beside it."""
    RETRY_PROOF.write_bytes(retry_proof())
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.bin"):
        old.unlink()
    for name, data in frames().items():
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
