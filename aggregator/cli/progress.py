"""A job's progress on the terminal: one picture, redrawn whenever the aggregator pushes one."""

import contextlib
import math
from collections.abc import Iterable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aggregator.cli.output import data_size
from aggregator.cli.utilisation import TIMES, Baseline, share_text, time_text
from privacy.accounting.chain import TIER_CONDITIONAL
from privacy.errors import PeerError, Reason
from privacy.wrap import WARN_RATE
from tidegate.convert import job_status_from_wire
from tidegate.convert.bounds import MAX_EPSILON
from tidegate.jobfile import NONE
from tidegate.requests import JobStatus, SiteProgress
from tidegate.v1 import operator_pb2

FIRST_CHARGE = (
    "a ledger counts at one order for life: its first charge shows much of ε, further ones add"
    " little"
)
"""Beside what ledgers say: after one release it reads higher than the whole job was planned for."""
_UNDER_WAY = ("queued", "running")
STYLES = {
    "ready": "green",
    "in-cohort": "green",
    "training": "cyan",
    "dropped": "yellow",
    "refused": "red",
    "absent": "red",
}


def watch_live(
    updates: Iterable[operator_pb2.WatchJobResponse],
    console: Console | None,
    baseline: Baseline | None = None,
) -> list[JobStatus]:
    """Show a job until it ends.

    Args:
        updates: What ``WatchJob`` streams; the last one is the job's end.
        console: Where to draw; ``None`` draws nothing.
        baseline: What bytes are compared with; ``None`` compares nothing.

    Returns:
        The job as it was seen over time, the last one at its end.

    Raises:
        PeerError: The stream ended without a word, or its content is malformed.
    """
    seen: list[JobStatus] = []
    drawn = console is not None and console.is_terminal
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(console=console)) if drawn else None
        for update in updates:
            seen.append(job_status_from_wire(update.job))
            if live:
                live.update(job_table(seen[-1], baseline))
    if not seen:
        raise PeerError(Reason.MALFORMED, "the aggregator ended the watch without a word")
    if console is not None and not drawn:
        console.print(job_table(seen[-1], baseline))  # into a file or pipe: the end only
    return seen


def mode_text(job: JobStatus) -> Text:
    """Name a job's privacy mode; what is not enforced is never shown like the others."""
    if job.tier.startswith(TIER_CONDITIONAL):
        return Text(f"{job.mode} (conditional)", style="bold yellow")
    return Text(job.mode, style="bold red" if job.mode == NONE else "")


def placed(site: SiteProgress) -> str:
    """Give a site's state, and its group where cohorts are drawn into groups."""
    return f"{site.state} (group {site.group})" if site.group else site.state


def job_table(job: JobStatus, baseline: Baseline | None = None) -> RenderableType:
    """Draw one job: where it is, what it measures, and each site's part."""
    shown = [_headline(job), _bar(job), _sites(job, baseline)]
    return Group(*shown, _details(job)) if any(site.detail for site in job.sites) else Group(*shown)


def person_lines(job: JobStatus) -> list[str]:
    """Say what the whole job costs a person, by the number of sites that hold its data."""
    if not job.person_sites:
        return []
    lines = [f"this job as planned, person in one site: ε ≤ {bound_text(job.epsilon_one_site)}"]
    if job.person_sites > 1:
        lines.append(f"in {job.person_sites} sites: ε ≤ {bound_text(job.epsilon_person)}")
    return lines


def bound_text(epsilon: float) -> str:
    """Write an upper bound, rounded up; what stands for none is said to be none."""
    if epsilon >= MAX_EPSILON:
        return "∞ (no bound)"
    return f"{math.ceil(epsilon * 1000) / 1000:.3f}"


def _headline(job: JobStatus) -> Text:
    states = [site.state for site in job.sites]
    cohort = sum(state == "in-cohort" for state in states)
    ready = sum(state == "ready" for state in states) + cohort
    text = Text()
    text.append(f"{job.name or job.job_id}", style="bold")
    text.append(f"  {job.state}", style="bold red" if job.mode == NONE else "bold cyan")
    text.append(f"  round {job.round}/{job.rounds}  ready {ready}  in cohort {cohort}")
    text.append(f"  dropped {sum(site.dropped for site in job.sites)}")
    text.append(f"  aborted {job.attempts_aborted}")
    text.append(f"  in {job.groups} groups\n" if job.groups else "\n")
    shown = "  ".join(f"{name} {value:.4f}" for name, value in sorted(job.metrics.items()))
    waits = "no metrics yet" if job.state in _UNDER_WAY else "no metrics"
    text.append(shown or waits)
    if job.metrics and job.mode != NONE:
        text.append("  (noised, averaged over rounds)", style="dim")
    if job.rounds_per_s > 0:
        text.append(f"   {job.rounds_per_s:.1f} rounds/s")
        if job.state == "running":
            left_s = (job.rounds - job.round) / job.rounds_per_s
            text.append(f"  ETA {left_s:.0f} s")
    if job.tier.startswith(TIER_CONDITIONAL):
        text.append(f"\nepsilon is the app's word: {job.tier}", style="bold yellow")
    if job.mode == NONE:
        text.append("\nNO DIFFERENTIAL PRIVACY: mode none", style="bold red")
    if job.wrap_rate > WARN_RATE:
        share = f"\nabout {job.wrap_rate:.1e} of the newest sum's coordinates may have wrapped"
        text.append(f"{share} around the ring: raise [compression] range", style="bold yellow")
    if job.detail:
        text.append(f"\n{job.detail}", style="yellow")
    return text


def _bar(job: JobStatus) -> RenderableType:
    grid = Table.grid()
    grid.add_row(ProgressBar(total=max(job.rounds, 1), completed=job.round, width=72))
    return grid


def _sites(job: JobStatus, baseline: Baseline | None) -> Table:
    caption = TIMES
    if baseline is not None:
        caption = f"{caption}\nfp32: up and down against {baseline.name}"
    if job.mode != NONE and job.delta_dp:
        lines = [f"ε per {job.unit} of all releases so far, at δ={job.delta_dp:g}"]
        caption = "\n".join([*lines, FIRST_CHARGE, *person_lines(job), caption])
    # Without vertical lines: nine columns fit into eighty characters.
    table = Table(
        header_style="bold",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in ("site", "state"):
        table.add_column(column)
    compared = () if baseline is None else ("fp32",)
    for column in ("ε", "up", "down", *compared, "rounds", "drops", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for site in job.sites:
        against = () if baseline is None else (share_text(baseline.share(site, job.round)),)
        table.add_row(
            site.site_id,
            Text(placed(site), style=STYLES.get(site.state, "")),
            f"{site.epsilon:.3f}" if job.mode != NONE else "no DP",
            data_size(site.bytes_up),
            data_size(site.bytes_down),
            *against,
            str(site.rounds_in),
            str(site.dropped),
            time_text(site),
        )
    return table


def _details(job: JobStatus) -> Text:
    """Say what there is to say of sites, below the table: in a column it would be a tall ribbon."""
    lines = [f"{site.site_id}: {site.detail}" for site in job.sites if site.detail]
    return Text("\n".join(lines), style="yellow")
