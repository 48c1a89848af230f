"""The strategies that the job file names are Flower's, and the watch knows each of them."""

from functools import partial

import pytest
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAdam, FedAvg, Krum, Strategy

from aggregator.server_app.strategy_watch import RefusedStrategy, check_strategy, watch_strategies
from tidegate.jobfile import STRATEGIES
from tidegate.jobfile.strategies import REFUSED


def watch(**changes):
    parts = {
        "check": partial(check_strategy, single_reply=False),
        "on_start": lambda strategy, named: None,
        "on_result": lambda arrays: None,
    }
    return watch_strategies(**{**parts, **changes})


def test_every_strategy_of_flower_is_allowed_or_refused():
    known = {*STRATEGIES, *REFUSED, "Result", "Strategy"}
    assert set(flower.__all__) == known


@pytest.mark.parametrize("name", STRATEGIES)
def test_allowed_ones_can_be_made(name):
    with watch():
        made = getattr(flower, name)()
    assert type(made).__name__ == name


@pytest.mark.parametrize("name", REFUSED)
def test_refused_ones_are_refused_before_their_own_code_runs(name):
    with watch(), pytest.raises(RefusedStrategy, match=f"{name} cannot run"):
        getattr(flower, name)("any", "arguments", at="all")


def test_a_wrapped_strategy_is_refused_with_its_wrapper():
    with watch(), pytest.raises(RefusedStrategy, match="mode = 'site'"):
        flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 5)


class Configures(FedAdam):
    def configure_train(self, *arguments):
        return super().configure_train(*arguments)


class Aggregates(FedAdam):
    def aggregate_train(self, *arguments):
        return super().aggregate_train(*arguments)


class Evaluates(FedAdam):
    def aggregate_evaluate(self, *arguments):
        return super().aggregate_evaluate(*arguments)


class OfItsOwn(Strategy):
    aggregate_train = aggregate_evaluate = configure_train = configure_evaluate = None
    summary = None


class OfKrum(Krum):
    pass


def test_own_classes_are_allowed_if_they_leave_the_aggregation_alone():
    with watch():
        Configures()
        for kind in (Aggregates, Evaluates, OfItsOwn):
            with pytest.raises(RefusedStrategy, match="single_reply = true"):
                kind()
    with watch(check=partial(check_strategy, single_reply=True)):
        for kind in (Aggregates, Evaluates, OfItsOwn):
            kind()
        with pytest.raises(RefusedStrategy, match="OfKrum, which derives from Krum"):
            OfKrum()


def test_the_watch_leaves_flower_as_it_was():
    start = Strategy.start
    with watch():
        assert Strategy.start is not start
    assert Strategy.start is start
    Krum()
    assert FedAvg(fraction_train=0.5).fraction_train == 0.5  # arguments reach __init__ as before
