"""Draw a job's forecast for the site administrator's terminal."""

import math

from rich.table import Table
from rich.text import Text

from edge_node.forecast import BudgetForecast, JobForecast
from edge_node.terminal import table_console
from privacy.accounting.chain import TIER_CONDITIONAL, TIER_NONE
from privacy.pipeline import Mode


def print_forecast(shown: JobForecast) -> None:
    """Print what a job would cost and whether it would be accepted."""
    console = table_console()
    verdict = "would be accepted" if shown.is_accepted else "would be refused"
    style = "bold green" if shown.is_accepted else "bold red"
    console.print(Text(f"{shown.job}: {verdict}", style=style))
    if shown.refusal:
        console.print(Text(f"  {shown.refusal}"))
    console.print(_grid(_job_lines(shown)))
    for budget in shown.budgets:
        console.print()
        console.print(Text(f"Budget of data set id {budget.dataset_id}, per {budget.unit}"))
        console.print(_grid(_budget_lines(budget, shown)))


def epsilon_text(value: float) -> str:
    """Write an epsilon as an upper bound: rounded up, infinity by its name."""
    if math.isinf(value):
        return "∞ (no bound)"
    return f"{math.ceil(value * 1e4) / 1e4:.4f}"


def _job_lines(shown: JobForecast) -> list[tuple[str, str]]:
    charged = f", {shown.charged} charged so far" if shown.charged else ""
    lines = [
        ("data set", shown.dataset),
        ("mode", shown.mode),
        ("clip and noise", _tier_text(shown.tier)),
        ("charges planned", f"{shown.exchanges}{charged}"),
        *_step_lines(shown),
    ]
    if shown.tier == TIER_NONE:
        return lines
    lines += [
        ("noise multiplier z", f"{shown.noise_multiplier:.4g}"),
        ("whole job", f"ε ≤ {epsilon_text(shown.job_epsilon)} at δ = {shown.delta_dp:g}"),
        ("person in one site", f"ε ≤ {epsilon_text(shown.epsilon_one_site)}"),
    ]
    if shown.person_sites > 1:
        several = f"ε ≤ {epsilon_text(shown.epsilon_person)} (the manifest's k_max)"
        lines.append((f"person in {shown.person_sites} sites", several))
    return lines


def _step_lines(shown: JobForecast) -> list[tuple[str, str]]:
    """Say how many steps a round has; a time box takes fewer, which makes nothing cheaper."""
    if not shown.local_steps:
        return []
    if shown.time_box_s is None:
        return [("local steps a round", str(shown.local_steps))]
    charged = ", and so many are charged each time" if shown.mode == Mode.RECORD_LOCAL else ""
    box = f"1 to {shown.local_steps}, as fit into {shown.time_box_s:g} s{charged}"
    return [("local steps a round", box)]


def _budget_lines(budget: BudgetForecast, shown: JobForecast) -> list[tuple[str, str]]:
    order = "chosen by this job's plan" if budget.alpha_is_new else "fixed"
    if shown.tier == TIER_NONE:
        return [("spent now", f"ε = {epsilon_text(budget.spent)}"), ("spent after", "ε = ∞")]
    carries = f"{budget.jobs_that_fit} such jobs, {budget.exchanges_that_fit} of its rounds"
    lines = [
        ("allowed", f"ε = {budget.epsilon:g} at δ = {budget.delta_dp:g}"),
        ("order alpha", f"{budget.alpha} ({order})"),
        ("spent now", f"ε = {epsilon_text(budget.spent)}{_share(budget.used_share)}"),
        ("this job adds", f"ε = {epsilon_text(budget.added)}"),
        ("spent after", f"ε = {epsilon_text(budget.after)}{_share(budget.used_share_after)}"),
        ("one charge twice", f"ε = {epsilon_text(budget.after_repeat)}"),
    ]
    if budget.fits:
        lines += [
            ("left after", f"ε = {math.floor(budget.left * 1e4) / 1e4:.4f}"),
            ("spare", f"{budget.spare_repeats} failed attempts that are charged again"),
        ]
    elif shown.is_accepted:
        lines.append(("does not fit", "the job would stop when the budget is used up"))
    return [*lines, ("room for", carries)]


def _share(used: float) -> str:
    return f", {used:.2%} of the budget used" if math.isfinite(used) else ""


def _tier_text(tier: str) -> str:
    if tier == TIER_NONE:
        return "none: NO DIFFERENTIAL PRIVACY"
    if tier.startswith(TIER_CONDITIONAL):
        return f"the app's word: {tier}"
    return f"Tidegate's own ({tier})"


def _grid(lines: list[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines:
        grid.add_row(f"  {name}", value)
    return grid
