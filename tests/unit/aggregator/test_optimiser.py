"""One secure mean reply gives what Flower's n replies give; a resumed job takes the same steps."""

import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import strategy as flower

from aggregator.optimiser import Optimiser
from aggregator.secure_grid import SecureGrid
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import Mode
from privacy.spec import TensorSpec, VectorSpec
from tests.support.encoding_plans import make_plan
from tests.support.flower_rounds import NODES, SPEC, FlowerGrid, SecureSums, loss
from tidegate import flower_messages
from tidegate.flower_bridge import assume_task_identity
from tidegate.jobfile import STRATEGY, FlowerApp

logging.getLogger("flwr").setLevel(logging.ERROR)

ROUNDS = 12
ADAM = {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2}
APP = FlowerApp(STRATEGY, 1, {}, train_config={"lr": 0.1}, evaluate_config={"batches": 3})
CASES = [
    ("FedAvg", {}, flower.FedAvg),
    ("FedAvg", {"server_learning_rate": 0.5}, flower.FedAvgM),
    ("FedProx", {"proximal_mu": 0.25}, flower.FedProx),
    ("FedAvgM", {}, flower.FedAvgM),
    ("FedAvgM", {"server_learning_rate": 0.7, "server_momentum": 0.9}, flower.FedAvgM),
    ("FedAdagrad", {"eta": 0.05}, flower.FedAdagrad),
    ("FedAdam", ADAM, flower.FedAdam),
    ("FedAdam", {}, flower.FedAdam),
    ("FedYogi", {**ADAM, "eta_l": 0.2}, flower.FedYogi),
]


def run_ours(name, options, rounds=range(1, ROUNDS + 1), start=None, state=b"", secure=None):
    optimiser = Optimiser(name, options, SPEC, 4, APP)
    if state:
        optimiser.restore(state)
    secure = secure or SecureSums()
    values_D = np.zeros(SPEC.length, np.float32) if start is None else start
    for server_round in rounds:
        secure.at(server_round, values_D)
        model = optimiser.step(server_round, values_D, secure)
        expected = np.mean([loss(node, values_D) for node in NODES])
        assert model.metrics == {"loss": pytest.approx(expected)}
        values_D = model.values_D
    assert secure.calls == [("train", NODES)] * len(rounds)
    return values_D, optimiser.state()


def run_flower(strategy):
    """Flower's own loop, over one reply a node."""
    assume_task_identity()
    grid = FlowerGrid()
    first = flower_messages.to_record(SPEC.unflatten(np.zeros(SPEC.length, np.float32)))
    result = strategy.start(grid, first, num_rounds=ROUNDS)
    assert grid.rounds.count(("train", len(NODES))) == ROUNDS
    return SPEC.flatten(flower_messages.as_float32(result.arrays)), result


@pytest.mark.parametrize(("name", "options", "kind"), CASES)
def test_one_mean_reply_steps_as_flowers_engine_does(name, options, kind):
    ours_D, _ = run_ours(name, options)
    theirs_D, _ = run_flower(kind(**options))
    assert np.abs(ours_D).max() > 0.05
    np.testing.assert_allclose(ours_D, theirs_D, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "gain"),
    [
        ("FedAvg", {}, 1.0),
        ("FedProx", {"proximal_mu": 0.25}, 1.0),
        ("FedAvgM", {"server_learning_rate": 0.5, "server_momentum": 0.5}, 0.5 / (1 - 0.5)),
    ],
)
def test_on_a_grid_the_gap_is_within_the_stated_error(name, options, gain):
    """Each mean is within half a grid step, 1/(2s); rounds add up (docs/guides/flower.md)."""
    scale = 1024.0
    secure = SecureSums(grid_plan(scale))
    ours_D, _ = run_ours(name, options, secure=secure)
    exact_D, _ = run_ours(name, options)
    bound = gain * ROUNDS / (2 * scale)
    gap = np.abs(ours_D - exact_D).max()
    assert 1e-6 < gap <= bound + 1e-6


@pytest.mark.parametrize("name", ["FedAdagrad", "FedAdam", "FedYogi"])
def test_one_adaptive_step_on_a_grid_is_within_the_stated_error(name):
    """The step of a fresh state moves by at most eta / tau for each unit that the mean moves."""
    scale, eta, tau = 65_536.0, 0.05, 0.05
    options = {"eta": eta, "tau": tau}
    secure = SecureSums(grid_plan(scale))
    ours_D, _ = run_ours(name, options, range(1, 2), secure=secure)
    exact_D, _ = run_ours(name, options, range(1, 2))
    gap = np.abs(ours_D - exact_D).max()
    # FedAdam's bias correction of round 1 multiplies eta; its moments are those of FedYogi.
    corrected = eta * (np.sqrt(1 - 0.99**2) / (1 - 0.9**2) if name == "FedAdam" else 1.0)
    assert 0 < gap <= corrected / tau / (2 * scale) + 1e-7


def grid_plan(scale):
    plan = make_plan(Mode.NONE, gradient=SPEC.length, metrics=0, scale=scale, clips=(50.0, 0.0))
    return type(plan)(**{**vars_of(plan), "spec_digest": SPEC.digest})


def vars_of(plan):
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


@pytest.mark.parametrize(("name", "options", "_kind"), CASES)
@pytest.mark.parametrize("cut", [1, 7])
def test_a_resumed_job_takes_exactly_the_same_steps(name, options, _kind, cut):
    whole_D, state = run_ours(name, options)
    half_D, half_state = run_ours(name, options, range(1, cut + 1))
    rest = range(cut + 1, ROUNDS + 1)
    resumed_D, resumed_state = run_ours(name, options, rest, half_D, half_state)
    np.testing.assert_array_equal(resumed_D, whole_D)
    assert resumed_state == state


@pytest.mark.parametrize(
    ("name", "options"), [("FedAvgM", {"server_momentum": 0.9}), ("FedYogi", ADAM)]
)
def test_without_its_state_a_resumed_job_would_go_astray(name, options):
    whole_D, _ = run_ours(name, options)
    half_D, _ = run_ours(name, options, range(1, 8))
    forgetful_D, _ = run_ours(name, options, range(8, ROUNDS + 1), half_D)
    assert np.abs(forgetful_D - whole_D).max() > 1e-3


def test_settings_reach_the_client_app_as_flower_sends_them():
    secure = SecureSums()
    run_ours("FedProx", {"proximal_mu": 0.25}, range(1, 3), secure=secure)
    expected = [{"lr": 0.1, "server-round": n, "proximal-mu": 0.25} for n in (1, 2)]
    assert secure.configs == expected


def test_a_task_is_told_nothing():
    secure = SecureSums()
    Optimiser("FedProx", {"proximal_mu": 0.25}, SPEC, 4).step(1, secure.values_D, secure)
    assert secure.configs == [{}]


def test_evaluation_gives_the_mean_metrics_and_no_model():
    optimiser, secure = Optimiser("FedAdam", ADAM, SPEC, 4, APP), SecureSums()
    metrics = optimiser.evaluate(3, secure.values_D, secure)
    _, result = run_flower(flower.FedAvg())
    assert secure.calls == [("evaluate", NODES)]
    assert secure.configs == [{"batches": 3, "server-round": 3}]
    expected = np.mean([loss(node, np.zeros(SPEC.length)) for node in NODES])
    assert metrics == {"loss": pytest.approx(expected)}
    assert dict(result.evaluate_metrics_clientapp[1]).keys() == metrics.keys()


def test_a_share_of_the_sites_can_be_sampled():
    secure = SecureSums()
    Optimiser("FedAvg", {"fraction_train": 0.8}, SPEC, 4).step(1, secure.values_D, secure)
    ((_, sampled),) = secure.calls
    assert len(sampled) == 4
    assert set(sampled) < set(NODES)


def test_a_round_that_was_given_up_gives_no_model():
    optimiser, secure = Optimiser("FedAvg", {}, SPEC, 4, APP), SecureSums()
    secure.give_up = True
    assert optimiser.step(1, secure.values_D, secure) is None
    assert optimiser.evaluate(1, secure.values_D, secure) is None


def test_a_step_out_of_the_finite_numbers_is_never_published():
    optimiser, secure = Optimiser("FedAvg", {}, SPEC, 4), SecureSums(offset=np.inf)
    with pytest.raises(PeerError) as caught:
        optimiser.step(1, secure.values_D, secure)
    assert caught.value.reason is Reason.NOT_FINITE


def test_strategies_that_compare_replies_are_refused():
    for name in ("FedMedian", "Krum"):
        with pytest.raises(UsageError, match=name):
            Optimiser(name, {}, SPEC, 4)
    with pytest.raises(UsageError, match="momentum"):
        Optimiser("FedAdam", {"momentum": 0.9}, SPEC, 4)


def test_a_state_of_another_job_is_refused():
    _, state = run_ours("FedAdam", ADAM, range(1, 2))
    other = VectorSpec((TensorSpec("w", (5, 4)), TensorSpec("b", (3,))))
    with pytest.raises(UsageError):
        Optimiser("FedAdam", ADAM, other, 4).restore(state)
    for name in ("FedAvg", "FedAvgM"):
        with pytest.raises(UsageError):
            Optimiser(name, {}, SPEC, 4).restore(state)
    with pytest.raises(UsageError, match="cannot be read"):
        Optimiser("FedAdam", ADAM, SPEC, 4).restore(state[:-3])


def test_a_reply_is_one_that_strategies_take():
    assume_task_identity()
    arrays = {"x": np.arange(3, dtype=np.float32)}
    content = RecordDict({"arrays": flower_messages.to_record(arrays), "config": ConfigRecord()})
    message = SecureGrid(SecureSums()).create_message(content, "train", 42, "1")
    assert (message.metadata.run_id, message.metadata.dst_node_id) == (1, 42)
    reply = flower_messages.mean_reply(message, arrays, {"num-examples": 1, "auc": 0.5})
    assert reply.metadata.src_node_id == 42
    assert not reply.has_error()
    assert isinstance(reply.content["arrays"], ArrayRecord)
    assert dict(reply.content["metrics"]) == {"num-examples": 1, "auc": 0.5}
    np.testing.assert_array_equal(
        flower_messages.as_float32(reply.content["arrays"])["x"], arrays["x"]
    )
