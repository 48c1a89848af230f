"""Write and read the small JSON frames between a process and the confined one that it started.

The socket keeps frames apart (SOCK_SEQPACKET), so none needs a length before it. Frames of the
confined process are hostile input: bounded in size, and whoever takes one reads nothing from it but
what it expects. Like all of this package, free of heavy libraries.
"""

import json
from typing import Any

from privacy.errors import PeerError, Reason

MAX_FRAME_BYTES = 1 << 16
MAX_DETAIL = 4000


def encode(frame: dict[str, Any]) -> bytes:
    """Write a frame.

    Raises:
        PeerError: TOO_LARGE: it does not fit, as with thousands of columns or long settings.
    """
    raw = json.dumps(frame, separators=(",", ":")).encode("ascii")
    if len(raw) > MAX_FRAME_BYTES:
        message = f"a frame of {len(raw)} bytes for a confined process exceeds {MAX_FRAME_BYTES}"
        raise PeerError(Reason.TOO_LARGE, message)
    return raw


def decode(raw: bytes) -> dict[str, Any]:
    """Read a frame of the confined process, without trusting it.

    Raises:
        PeerError: MALFORMED: it is not a JSON object.
    """
    try:
        frame = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PeerError(Reason.MALFORMED, "the confined process sent no JSON") from error
    if not isinstance(frame, dict):
        raise PeerError(Reason.MALFORMED, "the confined process sent JSON that is no object")
    return frame


def failure_frame(kind: str, detail: str) -> dict[str, Any]:
    """Say why the confined process ends, in a word that both sides know, and what happened."""
    return {"failed": kind, "detail": detail[:MAX_DETAIL]}
