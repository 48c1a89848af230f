"""A site's replay gives the aggregator's bits: each map, each strategy, any bits, many versions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from aggregator.optimiser import Optimiser
from aggregator.secure_rounds import SecureMean
from privacy.compress import MapKind
from privacy.decode import decode_sum
from privacy.errors import PeerError
from privacy.pipeline import Mode
from privacy.planning import encoding_for_version
from privacy.spec import TensorSpec, VectorSpec
from tests.support.encoding_plans import make_plan
from tidegate.outer_step import OuterStep
from tidegate.replay import pack_sum, read_sum

SPEC = VectorSpec((TensorSpec("w", (9, 8)), TensorSpec("s", ()), TensorSpec("b", (3, 1, 2))))
STRATEGIES = [
    ("FedAvg", {}),
    ("FedAvg", {"server_learning_rate": 0.3}),
    ("FedProx", {"proximal_mu": 0.1}),
    ("FedAvgM", {}),
    ("FedAvgM", {"server_learning_rate": 0.7, "server_momentum": 0.9}),
    ("FedAdagrad", {"eta": 0.05}),
    ("FedAdam", {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2}),
    ("FedYogi", {"eta": 0.05, "tau": 1e-2}),
]
ROUNDS = 5


class Rounds:
    """Hands the optimiser a mean, as an aggregator's rounds do."""

    def wait_for_nodes(self):
        return [1, 2]

    def run_round(self, _nodes, _instruction=None):
        return SecureMean(self.mean_D, {"loss": 0.5})


@pytest.mark.parametrize(("name", "options"), STRATEGIES)
@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(MapKind),
    metrics=st.integers(0, 4),
    numbers=st.tuples(st.integers(8, 32), st.floats(0.25, 1e4)),
    cut=st.integers(1, ROUNDS - 1),
    seed=st.integers(0, 2**32),
)
def test_replay_gives_the_aggregators_bits(name, options, kind, metrics, numbers, cut, seed):
    bits, divisor = numbers
    kept = 20 if kind.selects else 0
    shape = {"gradient": SPEC.length, "metrics": metrics, "kind": kind, "kept": kept}
    base = make_plan(Mode.NONE, bits=bits, **shape)
    source, rounds = np.random.default_rng(seed), Rounds()
    aggregator = Optimiser(name, options, SPEC, 2)
    site, state = OuterStep(name, options, SPEC), {}
    theirs_D = ours_D = source.normal(size=SPEC.length).astype(np.float32)
    for version in range(ROUNDS):
        plan = encoding_for_version(base, version)
        values_d = source.integers(0, 1 << bits, plan.length, dtype=np.uint32)
        rounds.mean_D = decode_sum(plan, values_d, divisor).gradient_D
        theirs_D = aggregator.step(version + 1, theirs_D, rounds).values_D
        if version == cut:  # a site that restarts here, or joins by the checkpoint
            site = OuterStep(name, options, SPEC)
            site.restore(state)
        mean_D = read_sum(plan, pack_sum(plan, values_d), divisor)
        ours_D = site.replay(version + 1, ours_D, mean_D)
        state = load(aggregator.state())
        assert ours_D.tobytes() == theirs_D.tobytes()
        held = site.state()
        assert held.keys() == state.keys() == set(site.fields)
        assert all(held[field].tobytes() == state[field].tobytes() for field in state)


@given(kind=st.sampled_from(MapKind), bits=st.integers(8, 32), extra=st.sampled_from([-1, 1]))
def test_a_sum_shows_no_metrics_that_the_map_leaves_apart(kind, bits, extra):
    kept = 20 if kind.selects else 0
    plan = make_plan(Mode.NONE, bits=bits, gradient=SPEC.length, metrics=3, kind=kind, kept=kept)
    assert plan.metrics_tail == (0 if kind in (MapKind.ROTATION, MapKind.LOW_RANK) else 3)
    values_d = np.arange(plan.length, dtype=np.uint32) & np.uint32((1 << bits) - 1)
    packed = pack_sum(plan, values_d)
    other_d = values_d.copy()
    other_d[plan.length - plan.metrics_tail :] = 7
    assert pack_sum(plan, other_d) == packed
    with pytest.raises(PeerError):
        read_sum(plan, packed[:extra] if extra < 0 else packed + b"\0", 4.0)
