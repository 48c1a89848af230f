"""Remember each data set's fingerprint beside the ledger, to warn when its content changed.

The warning is all: the ledger's key is the administrator's ``dataset_id``, whatever the content
(privacy.md, "Ledger"), for a key made of content would give a fresh budget with each new row.
Nothing of this leaves the site.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

from edge_node.data.dataset import Dataset
from edge_node.data.kept_table import write_private

_FILE = "fingerprints.json"


def changed_since(folder: Path, dataset: Dataset) -> str:
    """Say since when a data set's content was the one last seen; empty if it still is, or is new.

    Args:
        folder: The site's folder.
        dataset: As opened now.
    """
    seen = _read(folder).get(dataset.dataset_id, {}).get(dataset.name)
    if seen is None or seen["fingerprint"] == dataset.fingerprint:
        return ""
    return seen["since"]


def remember(folder: Path, dataset: Dataset, now_s: float) -> str:
    """Do the same, and note the content as seen.

    Args:
        folder: The site's folder.
        dataset: As opened now.
        now_s: Time of day, seconds since 1970.
    """
    content = _read(folder)
    of_id = content.setdefault(dataset.dataset_id, {})
    seen = of_id.get(dataset.name)
    fingerprint = dataset.fingerprint
    if seen is not None and seen["fingerprint"] == fingerprint:
        return ""
    since = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    of_id[dataset.name] = {"fingerprint": fingerprint, "since": since}
    write_private(folder / _FILE, json.dumps(content, indent=2, sort_keys=True).encode())
    return seen["since"] if seen is not None else ""


def _read(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Read what was seen; a damaged file only costs the warning."""
    try:
        content = json.loads((folder / _FILE).read_bytes())
        return {
            dataset_id: {
                name: {key: str(seen[key]) for key in ("fingerprint", "since")}
                for name, seen in of_id.items()
            }
            for dataset_id, of_id in content.items()
        }
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}
