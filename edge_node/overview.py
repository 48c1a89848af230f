"""Put together what `edge-node show-config` says: settings, policy, enrolment, sandbox."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

from edge_node.config import SiteConfig, load_config
from edge_node.policy_file import policy_of
from edge_node.trainer.device import device_kind
from edge_node.trainer.trainer import TrainerFailure, probe
from privacy.errors import UsageError

_SECRET_WORDS = ("password", "secret", "token", "credential", "key")


def overview(path: Path) -> dict[str, Any]:
    """Give the settings and the policy in force as plain values, nothing secret among them.

    Raises:
        UsageError: site.toml or policy.toml is wrong.
    """
    config = load_config(path)
    policy = dataclasses.asdict(policy_of(config))
    policy["allowed_apps"] = [f"sha256:{app}" for app in sorted(policy["allowed_apps"])]
    return {
        "site": config.site_id,
        "folder": str(config.folder),
        "mirror_file": str(config.mirror_file),
        "enrolled": (config.keys / "tls.pem").exists(),
        "aggregator": {"sites": config.sites_address, "enrolment": config.enrolment_address},
        "datasets": _datasets(config),
        "trainer": dataclasses.asdict(config.trainer),
        "device_found": device_kind(config.trainer.device),
        "session": dataclasses.asdict(config.session),
        "log_level": config.log_level,
        "policy": policy,
        "sandbox": _sandbox(),
    }


def _datasets(config: SiteConfig) -> dict[str, Any]:
    return {name: redact(declared.plug) for name, declared in config.datasets.items()}


def redact(table: dict[str, Any]) -> dict[str, Any]:
    """Give a loader's table with everything that could be a secret struck out."""
    return {
        key: redact(value)
        if isinstance(value, dict)
        else ("<redacted>" if any(word in key.lower() for word in _SECRET_WORDS) else value)
        for key, value in table.items()
    }


def _sandbox() -> dict[str, Any]:
    """Enter the sandbox once and say which protections hold on this machine."""
    try:
        report = asyncio.run(probe())
    except (TrainerFailure, UsageError) as error:
        return {"available": False, "why": str(error)}
    return {**dataclasses.asdict(report), "missing": list(report.missing)}
