"""Draw the privacy budgets of a site for its administrator's terminal."""

import math
from collections.abc import Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from edge_node.budget import BudgetLine
from edge_node.terminal import table_console

_COLUMNS = ("data set", "unit", "used", "spent ε", "left ε", "of ε", "δ", "charges", "tiers")
_CAPTION = (
    "A budget is counted at one order for life: its first charge shows much of ε as spent, further"
    ' ones add little. How full it is, is what "used" says.'
)


def print_budgets(lines: Sequence[BudgetLine]) -> None:
    """Print what each budget has spent and left."""
    console = table_console()
    if not lines:
        console.print("no privacy budget has been used on this site yet")
        return
    table = Table(
        title="Privacy budgets of this site",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=_CAPTION,
        caption_justify="left",
    )
    for name in _COLUMNS:
        justify: Literal["left", "right"] = "left" if name in ("data set", "tiers") else "right"
        # Ids and numbers that are cut would mislead; only the tiers wrap.
        table.add_column(name, justify=justify, no_wrap=name != "tiers", overflow="fold")
    for line in lines:
        table.add_row(
            line.dataset_id,
            line.unit,
            f"{line.used_share:.1%}" if math.isfinite(line.used_share) else "no DP",
            f"{line.spent_epsilon:.4f}",
            f"{line.left_epsilon:.4f}",
            f"{line.epsilon:g}",
            f"{line.delta_dp:g}",
            str(line.charges),
            "\n".join(f"{tier}: {count}" for tier, count in sorted(line.by_tier.items())),
        )
    console.print(table)
