"""Read ``[datasets.NAME.flower]`` of site.toml: what an unchanged Flower app is shown of the site.

Such an app loads its own data: by the paths that ``node_config`` names, as under Flower's own
engine, from folders that the sandbox shows read-only. A data set that only Flower apps use needs no
loader::

    [datasets.credit]
    dataset_id = "credit-2026"

    [datasets.credit.flower]
    readable = ["/srv/credit"]
    node_config = { data = "/srv/credit" }
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privacy.errors import UsageError
from tidegate.toml_table import Table

_PATH = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_MOST = 64
_MAX_TEXT = 1024


@dataclass(frozen=True)
class FlowerData:
    """What a Flower app is shown.

    Attributes:
        readable: Folders and files, absolute.
        node_config: ``Context.node_config``.
    """

    readable: tuple[Path, ...] = ()
    node_config: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def read_flower_data(table: Table, folder: Path, private: Path) -> FlowerData:
    """Read the table; its paths may be relative to site.toml.

    Args:
        table: ``[datasets.NAME.flower]``, its keys checked.
        folder: Where site.toml lies.
        private: The site's own folder, which no app may see.

    Raises:
        UsageError: What is wrong, where, and the mend.
    """
    readable = tuple(
        (folder / name).absolute() for name in table.texts("readable", _PATH, "a path", most=_MOST)
    )
    for path in readable:
        if private.resolve().is_relative_to(path.resolve()) or path.resolve().is_relative_to(
            private.resolve()
        ):
            raise table.bad("readable", f"must not show the site's own folder {private}")
    settings: Any = table.fields.get("node_config", {})
    if not isinstance(settings, dict) or len(settings) > _MOST:
        raise table.bad("node_config", f"must be a table of at most {_MOST} settings")
    for name, value in settings.items():
        if not isinstance(value, str | int | float | bool) or len(str(value)) > _MAX_TEXT:
            raise table.bad(
                "node_config", f"holds {name!r}, which must be a short text or a number"
            )
    return FlowerData(readable, settings)


def check_readable(data: FlowerData, where: str) -> None:
    """See that what is to be shown is there.

    Raises:
        UsageError: A path is missing.
    """
    for path in data.readable:
        if not path.exists():
            raise UsageError(f"{where} readable: there is no file or folder {path}")
