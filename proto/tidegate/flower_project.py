"""Read what a Flower app says of itself: ``[tool.flwr.app]`` of its pyproject.toml, both ends.

The submitting end checks an app with it, the site loads the app by it, so that both mean the same
objects and settings. Settings are flattened and overridden as Flower does: nested tables become
``outer.inner``, and an override must name a setting that the app has.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privacy.errors import UsageError

FILE = "pyproject.toml"
MAX_BYTES = 65_536

Setting = bool | int | float | str

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True)
class FlowerProject:
    """A Flower app's own words.

    Attributes:
        client_app: Where its ClientApp is, such as ``package.client_app:app``.
        server_app: Where its ServerApp is; empty where it has none.
        settings: ``[tool.flwr.app.config]``, flattened.
    """

    client_app: str
    server_app: str
    settings: Mapping[str, Setting]

    def run_config(self, overrides: Mapping[str, Setting]) -> dict[str, Setting]:
        """Give the run config: the app's settings under a job's overrides.

        Raises:
            UsageError: An override names no setting of the app's.
        """
        alien = sorted(overrides.keys() - self.settings.keys())
        if alien:
            raise UsageError(
                f"[flower.run_config] sets {', '.join(map(repr, alien[:5]))}, which"
                " [tool.flwr.app.config] of the app's pyproject.toml does not have"
            )
        return {**self.settings, **overrides}


def read_project(raw: bytes) -> FlowerProject:
    """Read a Flower app's pyproject.toml.

    Raises:
        UsageError: What is missing or wrong, in which table.
    """
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{FILE} has more than {MAX_BYTES} bytes")
    try:
        top = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{FILE} is no TOML file: {error}") from None
    app: Any = top
    for name in ("tool", "flwr", "app"):
        app = _table(app, name, "[tool.flwr.app]")
    components = _table(app, "components", "[tool.flwr.app.components]")
    client_app = _reference(components, "clientapp")
    if not client_app:
        raise UsageError(
            f"{FILE}: [tool.flwr.app.components] clientapp is missing: it names the ClientApp,"
            " such as 'package.client_app:app'"
        )
    config = app.get("config", {})
    if not isinstance(config, dict):
        raise UsageError(f"{FILE}: [tool.flwr.app.config] must be a table")
    return FlowerProject(client_app, _reference(components, "serverapp"), _flat(config, ""))


def _table(parent: dict[str, Any], name: str, place: str) -> dict[str, Any]:
    child = parent.get(name)
    if not isinstance(child, dict):
        raise UsageError(f"{FILE}: there is no table {place}: is this the folder of a Flower app?")
    return child


def _reference(components: dict[str, Any], name: str) -> str:
    value = components.get(name, "")
    if not isinstance(value, str) or (value and _REFERENCE.fullmatch(value) is None):
        raise UsageError(
            f"{FILE}: [tool.flwr.app.components] {name} must be written as 'package.module:object'"
        )
    return value


def _flat(table: dict[str, Any], prefix: str) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            found[prefix + name] = value
        else:
            raise UsageError(
                f"{FILE}: [tool.flwr.app.config] {prefix}{name} must be text, a number or a boolean"
            )
    return found
