"""Read the aggregator's configuration, and refuse what it does not know.

One TOML file, made by ``tidegate init`` and kept in the aggregator's folder. Every key has a
default but ``consortium_id``; an unknown key is an error, so that a mistyped limit is not silently
off.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from privacy.errors import UsageError
from privacy.secagg.keys import suite_named
from tidegate.pki import NAME

LEVELS = ("debug", "info", "warning", "error")
_MAX_PORT = 65_535


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
    """

    max_message_bytes: int = 4_194_304
    max_upload_bytes: int = 1 << 30
    max_app_bytes: int = 1 << 20
    max_model_bytes: int = 1 << 31
    max_sites: int = 200
    max_jobs: int = 64
    outgoing_messages: int = 256
    bundle_stock: int = 64


@dataclass(frozen=True)
class Timeouts:
    """How long each step of the secure exchange waits for a silent site, in seconds."""

    share_keys_s: float = 30.0
    masked_update_s: float = 300.0
    consistency_s: float = 30.0
    unmask_s: float = 30.0


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
    """

    consortium_id: str
    folder: Path
    database: str
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
    timeouts: Timeouts = Timeouts()


_STRINGS = (
    "consortium_id",
    "folder",
    "database",
    "host",
    "public_host",
    "device",
    "suite",
    "log_level",
)
_PORTS = ("site_port", "enrolment_port", "operator_port")


def load_config(path: Path) -> AggregatorConfig:
    """Read ``aggregator.toml``.

    Raises:
        UsageError: The file is missing or no TOML, a key is unknown, or a value makes no sense; the
            message names file, key and mend.
    """
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    known = (*_STRINGS, *_PORTS, "keep_last_uploads", "limits", "timeouts")
    _refuse_unknown(path, "", table, known)
    keep = table.get("keep_last_uploads", False)
    if not isinstance(keep, bool):
        raise UsageError(f"{path}: keep_last_uploads must be true or false, not {keep!r}")
    texts = {key: _string(path, key, table[key]) for key in _STRINGS if key in table}
    ports = {key: _whole(path, key, table[key], 0) for key in _PORTS if key in table}
    for key, port in ports.items():
        if port > _MAX_PORT:
            raise UsageError(f"{path}: {key} = {port} is no port (0 to {_MAX_PORT})")
    if NAME.fullmatch(texts.get("consortium_id", "")) is None:
        raise UsageError(f"{path}: consortium_id must be 1 to 63 of a-z, 0-9 and '-'")
    if texts.get("log_level", "info") not in LEVELS:
        raise UsageError(f"{path}: log_level must be one of {', '.join(LEVELS)}")
    suite_named(texts.get("suite", AggregatorConfig.suite))
    folder = (path.parent / texts.pop("folder", ".")).resolve()
    database = texts.pop("database", "") or f"sqlite:///{folder / 'aggregator.sqlite'}"
    timeouts = _numbers(path, table, "timeouts", Timeouts)
    return replace(
        AggregatorConfig(texts.pop("consortium_id"), folder, database),
        keep_last_uploads=keep,
        limits=Limits(**_numbers(path, table, "limits", Limits)),
        timeouts=Timeouts(**{key: float(value) for key, value in timeouts.items()}),
        **texts,  # type: ignore[arg-type]
        **ports,  # type: ignore[arg-type]
    )


def _numbers(
    path: Path, table: Mapping[str, object], name: str, kind: type[Limits] | type[Timeouts]
) -> dict[str, int]:
    section = _table(path, table, name)
    _refuse_unknown(path, name, section, [field.name for field in fields(kind)])
    return {key: _whole(path, f"{name}.{key}", value, 1) for key, value in section.items()}


def _table(path: Path, table: Mapping[str, object], name: str) -> dict[str, object]:
    section = table.get(name, {})
    if not isinstance(section, dict):
        raise UsageError(f"{path}: [{name}] must be a table")
    return section


def _refuse_unknown(
    path: Path, name: str, table: Mapping[str, object], allowed: tuple[str, ...] | list[str]
) -> None:
    unknown = sorted(set(table) - set(allowed))
    if unknown:
        where = f"[{name}] " if name else ""
        raise UsageError(
            f"{path}: {where}has the unknown key {unknown[0]!r}; known are {', '.join(allowed)}"
        )


def _string(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{path}: {key} must be a string in quotes, not {value!r}")
    return value


def _whole(path: Path, key: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{path}: {key} must be a whole number of at least {least}, not {value!r}")
    return value
