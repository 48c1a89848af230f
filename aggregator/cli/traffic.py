"""Say how large a job's updates are, and why: what ``tidegate job submit --dry-run`` shows.

Bytes are of the payload; control messages of the secure exchange, about 120 bytes a neighbour and
round, come on top.
"""

from dataclasses import dataclass

from rich.table import Table

from privacy.announcement import announced_bytes
from privacy.pipeline import EncodingPlan, Mode
from privacy.ring import packed_length
from tidegate.jobfile import JobFile
from tidegate.replay import replays, sum_bytes

_FP32_BYTES = 4


@dataclass(frozen=True)
class Traffic:
    """What one site sends and receives in a round, mean over even and odd versions.

    Attributes:
        parameters: D.
        map: The linear map's name.
        integers_even: d of even versions.
        integers_odd: d of odd ones.
        bits: B of each.
        bytes_up: Of a masked update.
        bytes_down: Of a version: its sum, or the whole model, and what it announces.
        ratio_up: The model in fp32 over an update.
        ratio_down: The same over a version.
        why: Where the numbers come from.
    """

    parameters: int
    map: str
    integers_even: int
    integers_odd: int
    bits: int
    bytes_up: float
    bytes_down: float
    ratio_up: float
    ratio_down: float
    why: tuple[str, ...]

    def table(self) -> Table:
        """Lay the numbers out for people."""
        shown = Table(title="what an update takes", show_header=False)
        integers = f"{self.integers_even} of {self.bits} bits"
        if self.integers_odd != self.integers_even:
            integers = f"{self.integers_even} or {self.integers_odd} in turns, of {self.bits} bits"
        rows = (
            ("parameters", str(self.parameters)),
            ("map", self.map),
            ("integers", integers),
            ("up, bytes a round", f"{self.bytes_up:.0f} ({self.ratio_up:.1f}x below fp32)"),
            ("down, bytes a round", f"{self.bytes_down:.0f} ({self.ratio_down:.1f}x below fp32)"),
            *(("why", reason) for reason in self.why),
        )
        for row in rows:
            shown.add_row(*row)
        return shown


def traffic_of(job: JobFile, plan: EncodingPlan) -> Traffic:
    """Work out what updates by a plan take."""
    whole = _FP32_BYTES * plan.gradient_length
    lengths = [plan.length_at(version) for version in (0, 1)]
    up = sum(packed_length(d, plan.bits) for d in lengths) / 2
    downs = [
        (sum_bytes(plan, version) if replays(job, plan) else whole)
        + announced_bytes(plan, version + 1)
        for version in (0, 1)
    ]
    down = sum(downs) / 2
    return Traffic(
        parameters=plan.gradient_length,
        map=str(plan.map_kind),
        integers_even=lengths[0],
        integers_odd=lengths[1],
        bits=plan.bits,
        bytes_up=up,
        bytes_down=down,
        ratio_up=whole / up,
        ratio_down=whole / down,
        why=tuple(_reasons(job, plan)),
    )


def _reasons(job: JobFile, plan: EncodingPlan) -> list[str]:
    asked = job.compression
    found = [f"asked for: {asked.target:g}x" if asked.target else "as [compression] says"]
    layout = plan.low_rank
    if layout is not None:
        small = plan.gradient_length - layout.matrix_entries
        matrices = f"{len(layout.matrices)} matrices at rank {layout.rank}"
        found.append(
            f"{matrices if layout.matrices else 'no tensor is large enough for a matrix'};"
            f" {layout.small_kept} of the {small} other coordinates"
        )
    if plan.mode in (Mode.RECORD_DISTRIBUTED, Mode.SITE):
        found.append("bits: signal and noise of all sites, five deviations")
    elif plan.announces_scale:
        given = "as [compression] says" if asked.bits else "from the number of sites"
        found.append(f"bits: {given}; the step size follows the last sum")
    else:
        found.append("bits: the finest grid on which no sum can wrap")
    if plan.decay:
        found.append(f"residual: {plan.decay:g} of what is left out goes into the next update")
    return found
