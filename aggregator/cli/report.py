"""A job's report: one HTML file without a single reference to anything outside it.

Everything in it comes through the operator API. The demo's page extends it by what only its harness
knows (``demo_report``).
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from aggregator.cli.charts import curve, stacked
from aggregator.cli.job_facts import JobFacts
from aggregator.cli.output import data_size
from aggregator.cli.progress import bound_text
from aggregator.cli.utilisation import baseline_of, share_text, time_text
from privacy.pipeline import EncodingPlan, Mode
from privacy.spec import VectorSpec
from privacy.wrap import WARN_RATE
from tidegate.jobfile import (
    FlowerApp,
    JobFile,
    LocalPrivacy,
    Robust,
    Trees,
)
from tidegate.requests import JobHistory, JobStatus

PAGES = Path(__file__).parent / "pages"
_TROUBLES = 40
_AGAINST = {
    Mode.RECORD_DISTRIBUTED: "the aggregator, with up to c colluding sites",
    Mode.RECORD_LOCAL: "everybody, even if secure aggregation is broken",
    Mode.SITE: "the aggregator, with up to c colluding sites",
    Mode.NONE: "nobody",
}


def write(path: Path, facts: JobFacts, page: str = "job.html.j2", **more: object) -> None:
    """Write a report.

    Args:
        path: The file to write.
        facts: The job.
        page: The template.
        more: What that template needs besides.
    """
    environment = Environment(
        loader=FileSystemLoader(PAGES), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["size"] = data_size
    values = _values(facts) | more
    path.write_text(environment.get_template(page).render(**values), encoding="utf-8")


def conditional_note(job: JobFile, app_sha256: bytes) -> str:
    """Say on what a stated epsilon depends besides Tidegate's own code; empty where on nothing."""
    if isinstance(job.work, FlowerApp) and isinstance(job.privacy, LocalPrivacy):
        return (
            "The app's own code adds the noise: epsilon holds only if the reviewed code"
            f" sha256:{app_sha256.hex()} clips, samples and adds noise as it declares."
        )
    return ""


def _values(facts: JobFacts) -> dict[str, Any]:
    status, history = facts.status, facts.history
    job = JobFile.parse(facts.job_toml)
    spec = VectorSpec.from_bytes(history.vector_spec)
    return {
        "job": status,
        "made_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "conditional": conditional_note(job, history.app_sha256),
        "epsilon": max((site.epsilon for site in status.sites), default=0.0),
        "target": _number(job.privacy, "epsilon"),
        "traffic": _traffic(status, job, spec.length),
        "results": _results(status, job) if len(history.rounds) == 1 else [],
        "parameters": spec.length,
        "pace": _pace(status),
        "curves": _curves(history, job),
        "time_of": {site.site_id: time_text(site) for site in status.sites},
        "time_chart": _time_chart(status) if status.round else "",
        "dropped": sum(site.dropped for site in status.sites),
        "troubles": status.log[-_TROUBLES:],
        "facts": privacy_facts(job, EncodingPlan.from_bytes(history.encoding), history)
        + person_facts(status),
        "provenance": {
            name: value
            for name, value in facts.provenance.items()
            if name not in ("certificate", "signature", "vector_spec")
        },
        "job_toml": facts.job_toml.decode(),
    }


def privacy_facts(job: JobFile, plan: EncodingPlan, history: JobHistory) -> list[tuple[str, str]]:
    """List a job's privacy numbers for people, with their names in the design's letters."""
    privacy = job.privacy
    rows = [("mode", str(plan.mode)), ("holds against", _AGAINST[plan.mode])]
    if plan.mode is not Mode.NONE:
        rows += [
            ("privacy unit", privacy.unit.kind),
            ("target ε, δ", f"{_number(privacy, 'epsilon')}, {_number(privacy, 'delta_dp')}"),
            ("noise multiplier z", f"{plan.noise_multiplier:.6g}"),
            ("sampling rate q", f"{plan.sampling_rate:g}"),
            ("clipping norm", f"C_g = {plan.clip_gradient:g}, C_m = {plan.clip_metrics:g}"),
            ("sensitivity D2", f"{plan.sensitivity:.6g} grid steps"),
            ("variance of a site's share", f"{plan.noise_variance} grid steps squared"),
        ]
    rows += [
        (f"… of it kept with {level.survivors} survivors", f"{level.variance} grid steps squared")
        for level in plan.noise_levels
    ]
    if job.robust is not None:
        rows.append(("robust", _robust(job.robust)))
    rows += [
        ("ring wraps", _wraps(history)),
        ("vector", f"{plan.length} integers of {plan.bits} bits, map {plan.map_kind}"),
        ("app", f"sha256:{history.app_sha256.hex()}"),
        ("manifest", f"sha256:{history.manifest_hash.hex()}"),
    ]
    return rows


def person_facts(status: JobStatus) -> list[tuple[str, str]]:
    """List what a job costs a person, by the number of sites that hold its data."""
    if not status.person_sites:
        return []
    kinds = {1: status.epsilon_one_site, status.person_sites: status.epsilon_person}
    return [
        (
            f"a person in {sites} site{'s' if sites > 1 else ''}",
            f"ε ≤ {bound_text(epsilon)} for this job: its plan and every repeated attempt",
        )
        for sites, epsilon in kinds.items()
    ]


def _robust(robust: Robust) -> str:
    trimmed = f", {robust.trim} at either end left out" if robust.trim else ""
    return (
        f"{robust.combine} of {robust.groups} groups' means{trimmed}; up to {robust.tolerated}"
        " malicious sites move no coordinate beyond what honest groups gave"
    )


def _wraps(history: JobHistory) -> str:
    worst = max((entry.wrap_rate for entry in history.rounds), default=0.0)
    verdict = "above" if worst > WARN_RATE else "not above"
    return (
        f"at most {worst:.1e} of a sum's coordinates, by estimate; {verdict} {WARN_RATE:.0e}, from"
        " which on a wider [compression] range is advised"
    )


def _number(privacy: object, name: str) -> str:
    return f"{getattr(privacy, name, 0.0):g}"


def _traffic(status: JobStatus, job: JobFile, parameters: int) -> dict[str, Any]:
    """Give a mean site's traffic, each site's share of the baseline's, and the baseline's own."""
    count = max(1, len(status.sites))
    site = sum(entry.bytes_up + entry.bytes_down for entry in status.sites) / count
    baseline = baseline_of(job, parameters)
    if baseline is None or not status.round:
        return {"site": site, "fp32": 0, "share": None, "baseline": "", "of": {}}
    fp32 = status.round * baseline.round_bytes
    of = {entry.site_id: share_text(baseline.share(entry, status.round)) for entry in status.sites}
    share = site / (2 * fp32)
    return {"site": site, "fp32": fp32, "share": share, "baseline": baseline.name, "of": of}


def _pace(status: JobStatus) -> str:
    rate = status.round / status.elapsed_s if status.elapsed_s > 0 else 0.0
    if not rate:
        return "-"
    return f"{rate:.1f} rounds/s" if rate >= 1 else f"{1 / rate:.1f} s a round"


def measured(metrics: Mapping[str, float], job: JobFile) -> dict[str, float]:
    """Leave out what only says how far a job is."""
    hidden = ("tree", "level") if isinstance(job.work, Trees) else ()
    return {name: value for name, value in metrics.items() if name not in hidden}


def _results(status: JobStatus, job: JobFile) -> list[tuple[str, str]]:
    """List what a single sum measured, each with the standard error of its noise if it is known."""
    values = measured(status.metrics, job)
    rows = []
    for name, value in sorted(values.items()):
        if name.removesuffix("_error") in values and name.endswith("_error"):
            continue
        error = values.get(f"{name}_error")
        rows.append((name, f"{value:,.6g}" + (f" ± {error:.2g}" if error is not None else "")))
    return rows


def _curves(history: JobHistory, job: JobFile) -> list[Markup]:
    names = sorted({name for entry in history.rounds for name in measured(entry.metrics, job)})
    curves = []
    for name in names:
        points = [(e.round, e.metrics[name]) for e in history.rounds if name in e.metrics]
        if len(points) > 1:
            chart = Markup(curve(points, "round", name))  # noqa: S704 - our own SVG from numbers
            curves.append(chart)
    return curves


def _time_chart(status: JobStatus) -> Markup:
    rows = [
        (
            site.site_id,
            {"compute": site.train_s, "exposed": site.exchange_s, "idle": site.wait_s},
        )
        for site in status.sites
    ]
    return Markup(stacked(rows))  # noqa: S704 - our own SVG from numbers
