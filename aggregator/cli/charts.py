"""Small charts as inline SVG: no script, no font, no network."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH = 720
LABEL = 170
ROW = 26
KINDS = ("compute", "exposed", "idle")


def bars(rows: Sequence[tuple[str, float, str]], low: float, high: float) -> str:
    """Draw one horizontal bar a row: (label, value, style class), on a scale from low to high."""
    room = WIDTH - LABEL - 70
    parts = []
    for number, (label, value, style) in enumerate(rows):
        top = number * ROW
        width = max(0.0, min(1.0, (value - low) / (high - low))) * room
        parts.append(
            f'<text class="label" x="{LABEL - 8}" y="{top + 17}">{escape(label)}</text>'
            f'<rect class="{style}" x="{LABEL}" y="{top + 4}"'
            f' width="{width:.1f}" height="18" rx="3"/>'
            f'<text x="{LABEL + width + 6:.1f}" y="{top + 17}">{value:.4f}</text>'
        )
    note = f"bars start at {low:g}"
    height = len(rows) * ROW + 20
    parts.append(f'<text class="note" x="{LABEL}" y="{height - 4}">{note}</text>')
    return _svg(height, parts, "AUC by model")


def curve(points: Sequence[tuple[float, float]], across: str, up: str) -> str:
    """Draw a line through points, with its extremes marked on both axes."""
    if len(points) < 2:
        return "<p>no points: the job was too short</p>"
    height, margin = 220, 60
    xs, ys = np.array(points, dtype=float).T
    low, high = float(ys.min()), float(ys.max())
    high = high if high > low else low + 1e-6
    px = margin + (xs - xs.min()) / max(xs.max() - xs.min(), 1e-9) * (WIDTH - margin - 12)
    py = height - 34 - (ys - low) / (high - low) * (height - 60)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(px, py, strict=True))
    parts = [
        f'<polyline class="line" points="{path}"/>',
        f'<text class="label" x="{margin - 6}" y="{height - 30}">{_short(low)}</text>',
        f'<text class="label" x="{margin - 6}" y="{30}">{_short(high)}</text>',
        f'<text x="{margin}" y="{height - 8}">{escape(across)} {xs.min():g}</text>',
        f'<text class="label" x="{WIDTH - 12}" y="{height - 8}">{xs.max():g}</text>',
        f'<text x="{margin}" y="14">{escape(up)}</text>',
    ]
    return _svg(height, parts, up)


def _short(value: float) -> str:
    """Write a number in at most seven characters or so, which is the room beside an axis."""
    if abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.0f}"


def stacked(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Draw one bar a row, cut into the seconds by kind of work."""
    room = WIDTH - LABEL - 20
    longest = max((sum(kinds.values()) for _, kinds in rows), default=0.0) or 1.0
    parts = []
    for number, (label, kinds) in enumerate(rows):
        top, left = number * ROW, float(LABEL)
        parts.append(f'<text class="label" x="{LABEL - 8}" y="{top + 17}">{escape(label)}</text>')
        for kind in KINDS:
            width = kinds[kind] / longest * room
            parts.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{top + 4}"'
                f' width="{width:.1f}" height="18">'
                f"<title>{kind}: {kinds[kind]:.1f} s</title></rect>"
            )
            if width > 60:
                parts.append(
                    f'<text class="inside" x="{left + 6:.1f}" y="{top + 17}">'
                    f"{kind} {kinds[kind]:.0f} s</text>"
                )
            left += width
    return _svg(len(rows) * ROW + 4, parts, "seconds by kind of work")


def histogram(counts_K: NDArray[np.int64]) -> str:
    """Draw counts of K classes as thin columns from zero up."""
    height, most = 70, max(int(counts_K.max()), 1)
    step = WIDTH / len(counts_K)
    parts = [
        f'<rect class="seen" x="{number * step:.2f}" y="{height * (1 - count / most):.1f}"'
        f' width="{step:.2f}" height="{height * count / most:.1f}"/>'
        for number, count in enumerate(counts_K)
    ]
    return _svg(height, parts, "counts of byte values")


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )
