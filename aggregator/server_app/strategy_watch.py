"""Watch a ServerApp's strategies: refuse those that need single replies, and take their results.

For a process of the app's own (``process``, ``rehearsal``): Flower's public
``Strategy`` is given a ``__new__`` and a ``start`` that look first. So a strategy is refused when
main makes it, before any site is asked, however main came by its class.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Result, Strategy

from aggregator.secure_grid import SecureGrid
from privacy.errors import UsageError
from tidegate.flower_messages import WEIGHT_KEY
from tidegate.jobfile.strategies import REFUSED, STRATEGIES

_ALLOWED = {part for name in STRATEGIES for part in getattr(flower, name).__mro__}
_REFUSED = {getattr(flower, name): name for name in REFUSED}
_AGGREGATES = ("aggregate_train", "aggregate_evaluate")


class RefusedStrategy(UsageError):  # noqa: N818 - as the other refusals
    """The app's strategy cannot run on secure sums."""


def check_strategy(kind: type[Strategy], *, single_reply: bool) -> None:
    """Refuse a class of strategies that would be wrong with one reply.

    Args:
        kind: The class that main makes an object of.
        single_reply: The job's owner vouches for a class of the app's own.

    Raises:
        RefusedStrategy: Flower's class, or the one it derives from, needs single replies; or the
            app's own class replaces how replies are aggregated, and nobody vouches for it.
    """
    for part in kind.__mro__:
        if part in _REFUSED:
            name = _REFUSED[part]
            what = name if part is kind else f"{kind.__name__}, which derives from {name},"
            raise RefusedStrategy(
                f"the ServerApp's strategy {what} cannot run on secure sums: it {REFUSED[name]}"
            )
    if single_reply:
        return
    for method in _AGGREGATES:
        owner = next((part for part in kind.__mro__ if method in vars(part)), None)
        if owner not in _ALLOWED:
            raise RefusedStrategy(
                f"the ServerApp's strategy {kind.__name__} has a {method} of its own, which would"
                " be given ONE reply: the mean over all sites, with weight 1. Where that is right"
                " (it saves or logs what super() gives, say), state single_reply = true in"
                f" [flower]; else derive from one of {', '.join(STRATEGIES)} and leave {method}"
                " as it is"
            )


@contextmanager
def watch_strategies(
    *,
    check: Callable[[type[Strategy]], None],
    on_start: Callable[[Strategy, dict[str, Any]], None],
    on_result: Callable[[ArrayRecord], None],
) -> Iterator[None]:
    """Look at every strategy that is made or started within.

    Args:
        check: Refuses a class (``check_strategy``).
        on_start: Hears of each ``start`` and its keyword arguments.
        on_result: Hears of the model that each ``start`` returned.
    """
    original_start = Strategy.start

    def new(kind: type[Strategy], *_: object, **__: object) -> Strategy:
        check(kind)
        return _make(kind)

    def start(strategy: Strategy, grid: Grid, *arguments: Any, **named: Any) -> Result:
        if isinstance(grid, SecureGrid):
            key = getattr(strategy, "weighted_by_key", WEIGHT_KEY)
            grid.weight_key = key if isinstance(key, str) else WEIGHT_KEY
        on_start(strategy, named)
        result = original_start(strategy, grid, *arguments, **named)
        if result.arrays is not None:
            on_result(result.arrays)
        return result

    Strategy.__new__ = new  # type: ignore[method-assign,assignment]
    Strategy.start = start  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Strategy.start = original_start  # type: ignore[method-assign]
        # Not deleted: a class that has had a __new__ refuses arguments without one (CPython).
        Strategy.__new__ = _make  # type: ignore[method-assign,assignment]


def _make(kind: type[Strategy], *_: object, **__: object) -> Strategy:
    made: Strategy = object.__new__(kind)
    return made
