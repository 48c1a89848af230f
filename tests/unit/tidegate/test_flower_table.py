"""``[flower]`` says who drives; strategies that need single replies are refused with the reason."""

import pytest

from privacy.errors import UsageError
from tests.support.flower_site import flower_job
from tidegate.jobfile import SERVER_APP, STRATEGIES, STRATEGY, JobFile
from tidegate.jobfile.strategies import OPTIONS, REFUSED

FEDAVG = '[strategy]\nname = "FedAvg"\n'


def parse(**values):
    return JobFile.parse(flower_job(**values))


def test_a_server_app_needs_nothing_but_its_name():
    work = parse().work
    assert (work.driver, work.single_reply, work.model) == (SERVER_APP, False, "")
    assert parse().strategy is None
    assert parse(flower="single_reply = true").work.single_reply


def test_a_strategy_says_what_main_would():
    flower = (
        'model = "pkg.model:net"\nevaluate_every = 2\n[flower.train_config]\nlr = 0.5\n'
        "[flower.evaluate_config]\nbatches = 3"
    )
    job = parse(driver="strategy", flower=flower, strategy=FEDAVG)
    assert (job.work.driver, job.work.model) == (STRATEGY, "pkg.model:net")
    assert job.work.train_config == {"lr": 0.5}
    assert job.work.evaluate_config == {"batches": 3}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"flower": "evaluate_every = 2"}, "the ServerApp says it"),
        ({"flower": "[flower.train_config]\nlr = 1"}, "the ServerApp says it"),
        ({"flower": 'model = "a:b"'}, "the ServerApp says it"),
        ({"strategy": FEDAVG}, "this work brings its own"),
        (
            {"driver": "strategy", "flower": "single_reply = true", "strategy": FEDAVG},
            "the ServerApp is not run",
        ),
        (
            {"driver": "strategy", "flower": 'model = "a.b"', "strategy": FEDAVG},
            "package.module:function",
        ),
        (
            {"driver": "strategy", "flower": "train_config = 3", "strategy": FEDAVG},
            "must be a table",
        ),
        ({"flower": "[flower.run_config]\nx = [1]"}, "short text or a number"),
        ({"flower": "drivers = 1"}, "did you mean 'driver'"),
    ],
)
def test_what_contradicts_the_driver_is_refused(values, says):
    with pytest.raises(UsageError, match=says):
        parse(**values)


@pytest.mark.parametrize("name", REFUSED)
def test_a_strategy_that_needs_single_replies_says_why_and_what_instead(name):
    strategy = f'[strategy]\nname = "{name}"\n'
    with pytest.raises(UsageError, match=f"{name} cannot run on secure sums: it ") as caught:
        parse(driver="strategy", strategy=strategy)
    assert str(REFUSED[name].instead) in str(caught.value)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_takes_its_options_and_no_others(name):
    options = "\n".join(f"{key} = 0.5" for key in OPTIONS[name])
    strategy = f'[strategy]\nname = "{name}"\n[strategy.options]\n{options}\n'
    job = parse(driver="strategy", strategy=strategy)
    assert job.strategy.options == dict.fromkeys(OPTIONS[name], 0.5)
    with pytest.raises(UsageError, match="unknown key"):
        parse(driver="strategy", strategy=strategy + "momentum = 0.5\n")
