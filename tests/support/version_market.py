"""Model versions as an aggregator broadcasts them, for tests, with their contents.

Whatever is made lands in ``contents``, by digest, as bytes to be served.
"""

import numpy as np

from tidegate.broadcast import Broadcast, ContentName, VersionLog
from tidegate.checkpoint import CheckpointLayout

NO_LOG = ContentName(b"l" * 32, 100)


def whole(contents, version, model_D, state=None):
    """Give the broadcast of a version that comes whole, and serve its chunks."""
    state = state or {}
    view = CheckpointLayout(model_D.size, tuple(state)).view(
        np.asarray(model_D, "<f4"), {name: np.asarray(v, "<f4") for name, v in state.items()}
    )
    serve(contents, view)
    return Broadcast(version, checkpoint=view.name)


def serve(contents, view):
    """Serve a checkpoint: its chunks, and their list under the root."""
    for digest, chunk in zip(view.digests, view.chunks(), strict=True):
        contents[digest] = bytes(chunk)
    contents.setdefault(view.name.sha256, b"".join(view.digests))


def log_of(contents, before, *broadcasts):
    """Give the name of a log, and serve it."""
    raw = VersionLog(before, broadcasts).to_bytes()
    name = ContentName.of(raw)
    contents[name.sha256] = raw
    return name
