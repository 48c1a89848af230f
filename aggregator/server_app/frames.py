"""Say what the aggregator and a ServerApp's process tell each other: `tidegate.confine.frames`.

Models and settings lie in shared memory (``server_app.memory``). Of a frame from the process
nothing but the fields below is read.

A conversation: the aggregator sends a `Start`; the process answers ``ready`` or a failure. Then the
process asks, one question at a time: ``nodes``, answered with ``node_ids``; ``exchange``, answered
with ``mean`` or ``given_up``. ``result`` says that a strategy's final model lies in the memory and
has no answer. ``done`` or a failure is its last frame.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from privacy.errors import PeerError, Reason
from tidegate.confine.frames import encode
from tidegate.confine.sandbox import SandboxReport
from tidegate.jobfile.work_kinds import Setting

MAX_NODES = 1000
SEED = 0
"""Of an app's generators, at submission and in each run alike: main begins with the same model."""

NODES = "nodes"
EXCHANGE = "exchange"
RESULT = "result"
DONE = "done"

APP = "app"
MEMORY = "memory"
SANDBOX = "sandbox"
REFUSED = "refused"


@dataclass(frozen=True)
class Start:
    """Aggregator to process, first: all it needs to confine itself and run the app's main.

    Attributes:
        app_folder: The unpacked app.
        reference: "package.module:object" of the ServerApp.
        run_config: Of the run's ``Context``.
        spec_bytes: Length of the vector spec at the begin of the shared memory.
        model_length: D.
        seed: Of torch, numpy and random before the app is loaded, so that main can be re-run.
        single_reply: The owner vouches for a strategy of the app's own.
        memory_mib: Memory limit.
        scratch_mib: What main may write to files, which go with the process.
        threads: Threads torch computes with.
        hidden: The aggregator's folders.
        required: Whether a missing protection ends the process before the app is loaded.
    """

    app_folder: str
    reference: str
    run_config: dict[str, Setting]
    spec_bytes: int
    model_length: int
    seed: int
    single_reply: bool
    memory_mib: int
    scratch_mib: int
    threads: int
    hidden: tuple[str, ...]
    required: bool


@dataclass(frozen=True)
class ExchangeFrame:
    """A question for an exchange; model and settings lie in the memory."""

    node_ids: tuple[int, ...]
    purpose: str
    config_bytes: int


def encode_start(start: Start) -> bytes:
    """Write the first frame."""
    return encode(asdict(start))


def decode_start(raw: bytes) -> Start:
    """Read the first frame, which the aggregator wrote: it is trusted."""
    fields: dict[str, Any] = json.loads(raw)
    fields["hidden"] = tuple(fields["hidden"])
    return Start(**fields)


def read_exchange(frame: dict[str, Any]) -> ExchangeFrame:
    """Read a question for an exchange.

    Raises:
        PeerError: MALFORMED.
    """
    asked = frame.get(EXCHANGE)
    nodes = asked.get("node_ids") if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or not isinstance(nodes, list) or len(nodes) > MAX_NODES:
        raise _malformed()
    purpose, config_bytes = asked.get("purpose"), asked.get("config_bytes")
    if not isinstance(purpose, str) or type(config_bytes) is not int:
        raise _malformed()
    if not all(type(node) is int for node in nodes):
        raise _malformed()
    return ExchangeFrame(tuple(nodes), purpose, config_bytes)


def report_frame(report: SandboxReport) -> dict[str, Any]:
    """Say that the sandbox is entered."""
    return {"ready": list(report.missing), "notes": list(report.notes)}


def read_missing(frame: dict[str, Any]) -> str:
    """Read which protections are missing, and why; empty where all hold.

    Raises:
        PeerError: MALFORMED.
    """
    missing, notes = frame.get("ready"), frame.get("notes")
    if not isinstance(missing, list) or not isinstance(notes, list):
        raise _malformed()
    return "; ".join(str(entry)[:500] for entry in (*missing, *notes)[:10]) if missing else ""


def _malformed() -> PeerError:
    return PeerError(Reason.MALFORMED, "the ServerApp's process broke its protocol")
