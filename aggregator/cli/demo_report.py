"""The demo's report: a job's report, and what only the demo's harness knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy.stats import chi2

from aggregator.cli import report
from aggregator.cli.charts import bars, histogram
from aggregator.cli.job_facts import JobFacts


def write(path: Path, facts: JobFacts, result: Mapping[str, Any], kept: Path) -> None:
    """Write the demo's report.

    Args:
        path: The file to write.
        facts: The demo's job.
        result: The demo's result table.
        kept: Folder of the last attempt's masked uploads, as the aggregator received them; may
            be missing.
    """
    report.write(
        path,
        facts,
        "demo.html.j2",
        result=result,
        gap=result["auc_pooled"] - result["auc_federated"],
        gain=result["auc_federated"] - float(np.mean(result["auc_local"])),
        auc_chart=Markup(_auc_chart(result)),  # noqa: S704 - our own SVG from numbers
        seen=_seen(kept),
    )


def _auc_chart(result: Mapping[str, Any]) -> str:
    rows = [
        (f"{site} alone", alone, "alone")
        for site, alone in zip(result["sites"], result["auc_local"], strict=True)
    ]
    rows.append(("federated, private", result["auc_federated"], "federated"))
    rows.append(("pooled, no privacy", result["auc_pooled"], "pooled"))
    return bars(rows, low=0.5, high=0.9)


def _seen(kept: Path) -> list[dict[str, Any]]:
    """Describe the masked uploads: a byte histogram each, and how uniform it is."""
    seen = []
    for file in sorted(kept.glob("*.masked")) if kept.is_dir() else ():
        data = np.frombuffer(file.read_bytes(), dtype=np.uint8)
        counts = np.bincount(data, minlength=256)
        expected = len(data) / 256
        statistic = float(((counts - expected) ** 2 / expected).sum())
        seen.append(
            {
                "site": file.stem,
                "size": len(data),
                "p": float(chi2.sf(statistic, 255)),
                "chart": Markup(histogram(counts)),  # noqa: S704 - our own SVG from numbers
            }
        )
    return seen
