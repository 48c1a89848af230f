"""Write small pictures as PNG in data URIs, so that a report is one file.

Shapes: H, W = pixels, C = channels (1 or 3).
"""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_GREY, _RGB = 0, 2


def data_uri(picture: NDArray[np.float32]) -> str:
    """Show a picture as a data URI.

    Args:
        picture: Shape (H, W) or (C, H, W), 0 to 1; what lies outside, or is no number, is cut off.
    """
    pixels = np.atleast_3d(picture) if picture.ndim == 2 else picture.transpose(1, 2, 0)
    cut = np.clip(np.nan_to_num(pixels, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
    raw = np.round(cut * 255).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(_png(raw)).decode("ascii")


def _png(pixels_HWC: NDArray[np.uint8]) -> bytes:
    height, width, channels = pixels_HWC.shape
    kind = _RGB if channels == 3 else _GREY
    lines = pixels_HWC.reshape(height, width * channels)
    scanned = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1)  # no line filter
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = (
        _chunk(b"IHDR", head),
        _chunk(b"IDAT", zlib.compress(scanned.tobytes(), 9)),
        _chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )
