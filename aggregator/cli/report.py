"""The demo's report: one HTML file without a single reference to anything outside it."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from scipy.stats import chi2

from aggregator.cli.charts import bars, curve, histogram, stacked
from aggregator.cli.output import data_size
from tidegate.requests import JobStatus

TEMPLATE = "report.html.j2"


def write(path: Path, result: Mapping[str, Any], history: Sequence[JobStatus], kept: Path) -> None:
    """Write the report.

    Args:
        path: The file to write.
        result: The demo's result table.
        history: The job as it was pushed, over time.
        kept: Folder of the last attempt's masked uploads, as the aggregator received them; may
            be missing.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters["size"] = data_size
    page = environment.get_template(TEMPLATE).render(
        result=result,
        made_at=time.strftime("%Y-%m-%d %H:%M"),
        gap=result["auc_pooled"] - result["auc_federated"],
        gain=result["auc_federated"] - float(np.mean(result["auc_local"])),
        epsilon=max(result["epsilon"]),
        count=len(result["sites"]),
        auc_chart=Markup(_auc_chart(result)),  # noqa: S704 - our own SVG from numbers
        training_chart=Markup(_training_chart(history)),  # noqa: S704
        time_chart=Markup(_time_chart(result)),  # noqa: S704
        seen=_seen(kept),
    )
    path.write_text(page, encoding="utf-8")


def _auc_chart(result: Mapping[str, Any]) -> str:
    rows = [
        (f"{site} alone", alone, "alone")
        for site, alone in zip(result["sites"], result["auc_local"], strict=True)
    ]
    rows.append(("federated, private", result["auc_federated"], "federated"))
    rows.append(("pooled, no privacy", result["auc_pooled"], "pooled"))
    return bars(rows, low=0.5, high=0.9)


def _training_chart(history: Sequence[JobStatus]) -> str:
    points = [(job.round, job.metrics["auc"]) for job in history if "auc" in job.metrics]
    return curve(points, "round", "AUC on the training batches (noised, averaged)")


def _time_chart(result: Mapping[str, Any]) -> str:
    rows = [
        (site, {"training": train, "exchange": exchange, "waiting": wait})
        for site, train, exchange, wait in zip(
            result["sites"],
            result["train_s"],
            result["exchange_s"],
            result["wait_s"],
            strict=True,
        )
    ]
    return stacked(rows)


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
