"""Read the aggregator's configuration, and refuse what it does not know.

One TOML file, made by ``tidegate init`` and kept in the aggregator's folder. Every key has a
default but ``consortium_id``; an unknown key is an error, so that a mistyped limit is not silently
off.
"""

import re
from dataclasses import dataclass, field, fields
from pathlib import Path

from privacy.errors import UsageError
from privacy.secagg.keys import suite_named
from privacy.secagg.rules import StepTimeouts
from tidegate.manifest import MAX_SITES
from tidegate.names import DEVICE, NAME, NAME_RULE
from tidegate.toml_table import Span, Table

SANDBOX_MODES = ("best-available", "required")
LEVELS = ("debug", "info", "warning", "error")
_MAX_FILE_BYTES = 1 << 20
_PORTS = Span(0, 65_535)
_COUNTS = Span(1, 1 << 40)
_HOST = re.compile(r"[A-Za-z0-9.:-]{1,253}")
_HOST_RULE = "a host name or an address"
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_TEXT_RULE = "text in quotes"


@dataclass(frozen=True)
class Limits:
    """What the aggregator accepts at most; the sealed manifest may be stricter.

    Attributes:
        max_message_bytes: One gRPC message.
        max_upload_bytes: One masked update.
        max_app_bytes: One app bundle.
        max_model_bytes: One model version.
        max_sites: Enrolled sites.
        max_jobs: Jobs that are queued or running.
        outgoing_messages: Messages that may wait for one slow site before it is dropped.
        bundle_stock: One-time bundles kept for each site.
        max_replay_bytes: Replies that a job with its own ServerApp keeps while it runs, so that
            its main can be re-run after a crash: four bytes a parameter and round.
        upload_window_bytes: What a site may have on its way, unread, in one upload. A line is full
            where it is at least bandwidth times delay; memory may grow by as much for each site.
    """

    max_message_bytes: int = 4_194_304
    max_upload_bytes: int = 1 << 30
    max_app_bytes: int = 1 << 20
    max_model_bytes: int = 1 << 31
    max_sites: int = MAX_SITES
    max_jobs: int = 64
    outgoing_messages: int = 256
    bundle_stock: int = 64
    max_replay_bytes: int = 1 << 33
    upload_window_bytes: int = 4 << 20


@dataclass(frozen=True)
class ServerAppSettings:
    """What the process of a job's own ServerApp may use.

    Attributes:
        memory_mib: Memory.
        scratch_mib: Files that its main writes (a last model, say), which nobody keeps: more
            memory while it runs.
        time_limit_s: Seconds that its main may compute between two exchanges.
        threads: Threads that torch computes with; a main is re-run with as many.
        sandbox: "best-available" takes what the machine offers and says so; "required" refuses to
            run a ServerApp without all of it.
    """

    memory_mib: int = 4096
    scratch_mib: int = 1024
    time_limit_s: float = 600.0
    threads: int = 1
    sandbox: str = "best-available"


@dataclass(frozen=True)
class AggregatorConfig:
    """Everything that one aggregator process is told.

    Attributes:
        consortium_id: The consortium it serves; a manifest of another one is refused.
        folder: Where keys and state lie; the configuration file's folder unless it says otherwise.
        database: SQLAlchemy URL; a SQLite file in the folder unless it says otherwise.
        host: Address to bind.
        public_host: Name or address that sites dial, where it differs (behind a load balancer).
        site_port: mTLS, site certificates only; 0 takes a free one (see ``addresses.json``).
        enrolment_port: TLS and one-time tokens.
        operator_port: mTLS, operator certificates only.
        device: "auto", "cpu", "cuda", ...: where vectors are folded.
        suite: The only suite whose manifests are accepted.
        log_level: debug, info, warning or error.
        keep_last_uploads: Copy the masked uploads of a job's last round into ``kept/``, to show
            what an aggregator sees.
        limits: See ``Limits``.
        timeouts: How long each step of the secure exchange waits for a silent site.
        server_app: See ``ServerAppSettings``.
    """

    consortium_id: str
    folder: Path
    database: str = field(repr=False)  # a PostgreSQL URL may hold a password
    host: str = "127.0.0.1"
    public_host: str = ""
    site_port: int = 0
    enrolment_port: int = 0
    operator_port: int = 0
    device: str = "auto"
    suite: str = "P256_SHA256_AES256"
    log_level: str = "info"
    keep_last_uploads: bool = False
    limits: Limits = Limits()
    timeouts: StepTimeouts = field(default_factory=StepTimeouts)
    server_app: ServerAppSettings = ServerAppSettings()


def load_config(path: Path) -> AggregatorConfig:
    """Read ``aggregator.toml``.

    Raises:
        UsageError: The file is missing or no TOML, a key is unknown, or a value makes no sense; the
            message names file, key and mend.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    known = [one.name for one in fields(AggregatorConfig)]
    top = Table.parse(raw, str(path), known, _MAX_FILE_BYTES)
    base = AggregatorConfig
    folder = (path.parent / top.text("folder", _TEXT, _TEXT_RULE, ".")).resolve()
    database = f"sqlite:///{folder / 'aggregator.sqlite'}"
    suite = top.text("suite", _TEXT, _TEXT_RULE, base.suite)
    suite_named(suite)
    return AggregatorConfig(
        consortium_id=top.text("consortium_id", NAME, NAME_RULE),
        folder=folder,
        database=top.text("database", _TEXT, _TEXT_RULE, database),
        host=top.text("host", _HOST, _HOST_RULE, base.host),
        public_host=top.text("public_host", _HOST, _HOST_RULE) if top.has("public_host") else "",
        site_port=top.whole("site_port", _PORTS, base.site_port),
        enrolment_port=top.whole("enrolment_port", _PORTS, base.enrolment_port),
        operator_port=top.whole("operator_port", _PORTS, base.operator_port),
        device=top.text("device", DEVICE, "'auto' or a torch device", base.device),
        suite=suite,
        log_level=top.choice("log_level", LEVELS, base.log_level),
        keep_last_uploads=top.flag("keep_last_uploads", base.keep_last_uploads),
        limits=Limits(**_whole_numbers(top, "limits", Limits)),
        timeouts=StepTimeouts(**_whole_numbers(top, "timeouts", StepTimeouts)),
        server_app=_read_server_app(top),
    )


def _read_server_app(top: Table) -> ServerAppSettings:
    table = top.table("server_app", [one.name for one in fields(ServerAppSettings)])
    base = ServerAppSettings()
    return ServerAppSettings(
        memory_mib=table.whole("memory_mib", Span(256, 1 << 20), base.memory_mib),
        scratch_mib=table.whole("scratch_mib", Span(1, 1 << 20), base.scratch_mib),
        time_limit_s=table.number("time_limit_s", Span(1, 604_800), base.time_limit_s),
        threads=table.whole("threads", Span(1, 256), base.threads),
        sandbox=table.choice("sandbox", SANDBOX_MODES, base.sandbox),
    )


def _whole_numbers(
    top: Table, name: str, kind: type[Limits] | type[StepTimeouts]
) -> dict[str, int]:
    """Read a table of positive whole numbers; what is absent keeps its default."""
    table = top.table(name, [one.name for one in fields(kind)])
    return {key: table.whole(key, _COUNTS) for key in table.fields}
