"""Read site.toml: where a site keeps its state, what it trains with, whom it talks to.

Relative paths are relative to the file. Nothing secret stands in it: keys and tokens are files of
their own. Addresses, certificates and the operator's key come with enrolment and lie in the site's
folder; `[aggregator]` only overrides addresses, for a site behind a relay.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_node.data.declared import read_dataset_id, read_declared
from edge_node.flower.data import FlowerData, read_flower_data
from edge_node.trainer.device import AUTO, KINDS, PRECISIONS
from privacy.errors import UsageError
from tidegate.names import ADDRESS, DEVICE, NAME, NAME_RULE
from tidegate.toml_table import Span, Table

_MAX_FILE_BYTES = 1 << 20
_PATH = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_PATH_RULE = "a path"
_BASE_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_BASE_MODEL_RULE = "1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit"
_DEVICE_RULE = f"'auto' or one of {', '.join(KINDS)}, with a number such as ':1' if need be"
_TABLES = {
    "site": ("id", "folder"),
    "store": ("mirror_file", "boot_key_folder"),
    "aggregator": ("sites", "enrolment"),
    "policy": ("file",),
    "trainer": (
        "memory_mib",
        "time_limit_s",
        "start_time_limit_s",
        "threads",
        "sandbox",
        "device",
        "precision",
        "processes",
        "parallel",
        "max_restarts",
        "leak_share",
        "app_state_mib",
    ),
    "session": ("backoff_s", "backoff_max_s", "keepalive_s", "connect_timeout_s"),
    "log": ("level",),
}


@dataclass(frozen=True)
class TrainerSettings:
    """What the trainer process may use; policy.toml may set ceilings to the numbers.

    Attributes:
        memory_mib: Memory each of its processes may allocate, shared arrays not counted.
        time_limit_s: Longest time for one round's training.
        start_time_limit_s: Longest time until the app is loaded and checked.
        threads: Threads that torch computes with, in each process.
        sandbox: "best-available" takes what the machine offers and says so; "required" refuses to
            train where a protection is missing.
        device: "auto" or a device as `edge_node.trainer.device` names them.
        precision: "float32", "bf16" (the forward pass of local steps), or "auto".
        processes: Processes that share a batch, each with a device of its own.
        parallel: "ddp" holds the whole model in each process, "fsdp" a share of it.
        max_restarts: Failures in a row after which a job's app is not started again.
        leak_share: Share of memory_mib by which an app may grow over five rounds in a row before
            it is replaced.
        app_state_mib: The most that a Flower app's ``Context.state`` may take for one job; twice
            as much is kept on disk.
    """

    memory_mib: int = 4096
    time_limit_s: float = 120.0
    start_time_limit_s: float = 120.0
    threads: int = 1
    sandbox: str = "best-available"
    device: str = "auto"
    precision: str = "float32"
    processes: int = 1
    parallel: str = "ddp"
    max_restarts: int = 5
    leak_share: float = 0.1
    app_state_mib: int = 256


@dataclass(frozen=True)
class SessionSettings:
    """How the session to the aggregator is kept.

    Attributes:
        backoff_s: First wait before dialling again; it doubles, with jitter.
        backoff_max_s: Longest wait.
        keepalive_s: Time between keepalive pings on an idle connection.
        connect_timeout_s: Longest wait for a connection.
    """

    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    keepalive_s: float = 20.0
    connect_timeout_s: float = 10.0


@dataclass(frozen=True)
class DatasetConfig:
    """One data set as the administrator declares it.

    Attributes:
        name: What jobs call it.
        id: What the ledger charges; overlapping or derived data sets share one id (privacy.md).
        plug: Its table as it stands, for `edge_node.data.loading`; without a loader where only
            Flower apps, which load their own data, may use it.
        flower: What unchanged Flower apps are shown; None where they may not use it.
    """

    name: str
    id: str
    plug: dict[str, Any]
    flower: FlowerData | None = None

    @property
    def has_rows(self) -> bool:
        """Return whether it has a loader."""
        return "loader" in self.plug


@dataclass(frozen=True)
class SiteConfig:
    """site.toml, checked.

    Attributes:
        path: The file itself.
        site_id: Name of the site, as the operator knows it.
        folder: The site's state: keys, database. This is what a backup takes.
        mirror_file: Generation counter outside the backup (secure-aggregation.md, "Keys and
            bundles"): a restored database is older than it, and is refused.
        boot_key_folder: Memory-backed folder for the boot key, or None for the machine's default.
        base_models: Folders of frozen weights by the names that jobs use.
    """

    path: Path
    site_id: str
    folder: Path
    mirror_file: Path
    boot_key_folder: Path | None
    sites_address: str | None
    enrolment_address: str | None
    policy_file: Path
    datasets: dict[str, DatasetConfig]
    base_models: dict[str, Path]
    trainer: TrainerSettings
    session: SessionSettings
    log_level: str

    @property
    def database(self) -> Path:
        """The site's store."""
        return self.folder / "site.db"

    @property
    def apps(self) -> Path:
        """Where apps are unpacked: beside the folder, for a trainer sees nothing of the site's."""
        return self.folder.with_name(f"{self.folder.name}.apps")

    @property
    def keys(self) -> Path:
        """The folder of keys, certificates and what enrolment pinned."""
        return self.folder / "keys"


def load_config(path: Path) -> SiteConfig:
    """Read and check site.toml.

    Raises:
        UsageError: A key is unknown, missing or out of range; the message names it.
    """
    path = path.absolute()
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    top = Table.parse(raw, str(path), (*_TABLES, "datasets", "base_models"), _MAX_FILE_BYTES)
    tables = {name: top.table(name, keys) for name, keys in _TABLES.items()}
    site, store, aggregator = tables["site"], tables["store"], tables["aggregator"]
    folder = path.parent / site.text("folder", _PATH, _PATH_RULE)
    mirror = path.parent / store.text("mirror_file", _PATH, _PATH_RULE, f"{folder}.generation")
    if mirror.resolve().is_relative_to(folder.resolve()):
        raise store.bad(
            "mirror_file",
            "must lie outside [site] folder: a restored backup would bring its own generation"
            " along and go unnoticed",
        )
    return SiteConfig(
        path=path,
        site_id=site.text("id", NAME, NAME_RULE),
        folder=folder,
        mirror_file=mirror,
        boot_key_folder=_optional_path(store, "boot_key_folder", path.parent),
        sites_address=_address(aggregator, "sites"),
        enrolment_address=_address(aggregator, "enrolment"),
        policy_file=path.parent / tables["policy"].text("file", _PATH, _PATH_RULE),
        datasets=_datasets(top, path, folder),
        base_models=_base_models(top, path.parent),
        trainer=_trainer(tables["trainer"]),
        session=_session(tables["session"]),
        log_level=tables["log"].choice("level", ("debug", "info", "warning", "error"), "info"),
    )


def _optional_path(table: Table, key: str, folder: Path) -> Path | None:
    return folder / table.text(key, _PATH, _PATH_RULE) if table.has(key) else None


def _address(table: Table, key: str) -> str | None:
    return table.text(key, ADDRESS, "host:port") if table.has(key) else None


def _datasets(top: Table, path: Path, private: Path) -> dict[str, DatasetConfig]:
    """Read [datasets.NAME]; a plug's own keys are checked here, its data when it is opened."""
    names = top.fields.get("datasets", {})
    if not isinstance(names, dict):
        raise UsageError(f"{top.where} datasets must be tables: write [datasets.NAME]")
    return {name: _dataset(name, whole, path, private) for name, whole in names.items()}


def _dataset(name: str, whole: Any, path: Path, private: Path) -> DatasetConfig:
    plug, flower = whole, None
    if isinstance(whole, dict) and "flower" in whole:
        plug = {key: value for key, value in whole.items() if key != "flower"}
        table = Table({name: whole}, f"{path}: [datasets]").table(name, tuple(whole))
        table = table.table("flower", ("readable", "node_config"))
        flower = read_flower_data(table, path.parent, private)
    if flower is not None and "loader" not in plug:
        dataset_id = read_dataset_id(name, plug, str(path), ("dataset_id",))
    else:
        dataset_id = read_declared(name, plug, path.parent, str(path)).dataset_id
    return DatasetConfig(name, dataset_id, {**plug, "dataset_id": dataset_id}, flower)


def _base_models(top: Table, folder: Path) -> dict[str, Path]:
    """Read [base_models.NAME]: the folders of frozen weights that jobs may name."""
    names = top.fields.get("base_models", {})
    if not isinstance(names, dict):
        raise UsageError(f"{top.where} base_models must be tables: write [base_models.NAME]")
    declared = top.table("base_models", tuple(names))
    found = {}
    for name in names:
        if not _BASE_MODEL.fullmatch(name):
            raise declared.bad(name, f"must have a NAME of {_BASE_MODEL_RULE}")
        found[name] = folder / declared.table(name, ("path",)).text("path", _PATH, _PATH_RULE)
    return found


def _trainer(table: Table) -> TrainerSettings:
    base = TrainerSettings()
    seconds = Span(0, 1e6, open_low=True)
    device = table.text("device", DEVICE, _DEVICE_RULE, base.device)
    if device.partition(":")[0] not in {AUTO, *KINDS}:
        raise table.bad("device", f"must be {_DEVICE_RULE}")
    return TrainerSettings(
        memory_mib=table.whole("memory_mib", Span(64, 1 << 24), base.memory_mib),
        time_limit_s=table.number("time_limit_s", seconds, base.time_limit_s),
        start_time_limit_s=table.number("start_time_limit_s", seconds, base.start_time_limit_s),
        threads=table.whole("threads", Span(1, 1024), base.threads),
        sandbox=table.choice("sandbox", ("best-available", "required"), base.sandbox),
        device=device,
        precision=table.choice("precision", PRECISIONS, base.precision),
        processes=table.whole("processes", Span(1, 64), base.processes),
        parallel=table.choice("parallel", ("ddp", "fsdp"), base.parallel),
        max_restarts=table.whole("max_restarts", Span(0, 1000), base.max_restarts),
        leak_share=table.number("leak_share", Span(0, 1, open_low=True), base.leak_share),
        app_state_mib=table.whole("app_state_mib", Span(0, 1 << 14), base.app_state_mib),
    )


def _session(table: Table) -> SessionSettings:
    base = SessionSettings()
    wait = Span(0.01, 86_400)
    return SessionSettings(
        backoff_s=table.number("backoff_s", wait, base.backoff_s),
        backoff_max_s=table.number("backoff_max_s", wait, base.backoff_max_s),
        keepalive_s=table.number("keepalive_s", Span(10, 7200), base.keepalive_s),
        connect_timeout_s=table.number("connect_timeout_s", Span(0.1, 600), base.connect_timeout_s),
    )
