"""A site trains from no model version that looks made to leak, whichever round it comes in."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from edge_node import commands as ec
from edge_node.bench import Bench
from edge_node.job_state import JobState
from edge_node.policy import Policy
from edge_node.updates import UpdateDesk
from privacy.errors import Reason
from privacy.leakage.model_lint import Detector
from privacy.noise import NoisedUpdate
from privacy.spec import TensorSpec, VectorSpec

SPEC = VectorSpec(
    (
        TensorSpec("body.weight", (64, 32)),
        TensorSpec("body.bias", (64,)),
        TensorSpec("head.weight", (2, 64)),
    )
)


def model(malicious):
    source = np.random.default_rng(0)
    arrays = {t.name: source.normal(size=t.shape).astype("<f4") for t in SPEC.tensors}
    if malicious:
        arrays["body.weight"][:] = 1 / 32
        arrays["body.bias"][:] = -np.linspace(0, 1, 64)
    return SPEC.flatten(arrays)


class Work:
    """A job's work that notes what it was asked to train from."""

    def __init__(self, *, runs_app=True):
        self.seen = []
        privacy = SimpleNamespace(delta_dp=1e-5)
        self.job = SimpleNamespace(
            job_id="job-1",
            job_file=SimpleNamespace(runs_app=runs_app, privacy=privacy),
            spec=SPEC,
            dataset=SimpleNamespace(dataset_id="loans"),
            delta_dp=1e-5,
            charged_ahead=True,
            terms_for=lambda purpose: (None, None),
        )

    async def make_update(self, request):
        self.seen.append(request.model_D)
        return NoisedUpdate(np.zeros(3, np.int64))


class Site:
    def __init__(self, policy=None, **options):
        policy = policy or Policy()
        self.bench, self.work, self.charged = Bench(), Work(**options), []
        self.bench.jobs["job-1"] = self.work
        ledgers = SimpleNamespace(look_ahead=lambda *_: None, spent=lambda *_: 0.0)
        steps = SimpleNamespace(charge_ahead=lambda job, key: self.charged.append(key))
        self.desk = UpdateDesk(None, self, policy, (ledgers, steps), self.bench)

    async def come_to(self, wanted, _job):
        """Play the follower: the version that is wanted is a replica."""
        return wanted

    def train(self, number, model_D):
        self.replica = SimpleNamespace(model_D=model_D, passed_lint=False, announcement=b"")
        key = ec.UpdateKey(number, number - 1, "train")
        return asyncio.run(self.desk.make(ec.Train("job-1", key, self.replica, b"")))


def test_a_malicious_version_in_a_late_round_is_refused_uncharged_and_each_time():
    site = Site()
    for number in range(1, 4):
        assert isinstance(site.train(number, model(malicious=False)), ec.Trained)
    assert (len(site.work.seen), len(site.charged)) == (3, 3)
    for number in (4, 4, 5):
        answer = site.train(number, model(malicious=True))
        assert isinstance(answer, ec.TrainFailed)
        assert answer.reason is Reason.SUSPECT_MODEL
        assert "'body.weight'" in answer.detail
    assert (len(site.work.seen), len(site.charged)) == (3, 3)
    assert not site.replica.passed_lint
    assert isinstance(site.train(6, model(malicious=False)), ec.Trained)


def test_an_administrator_may_consent_to_what_was_found():
    site = Site(Policy(lint_allow=(Detector.IMPRINT,)))
    assert isinstance(site.train(1, model(malicious=True)), ec.Trained)
    site = Site(Policy(lint_allow=(Detector.TRAP,)))
    assert isinstance(site.train(1, model(malicious=True)), ec.TrainFailed)


def test_a_vector_that_no_app_turns_into_layers_is_not_judged_as_layers():
    site = Site(runs_app=False)
    assert isinstance(site.train(1, model(malicious=True)), ec.Trained)


@pytest.mark.parametrize("late", [False, True])
def test_the_operator_is_told_even_by_a_site_that_is_late(late):
    from tests.support.site_simulation import NAMES, SimAggregator
    from tidegate import messages as m

    market = SimAggregator(NAMES)
    market.connect()
    market.offer()
    market.ask_to_train()
    site = market.sites["bank-a"]
    state: JobState = site.participant._jobs[market.job_id]
    key = state.wanted_key
    if late:
        key = ec.UpdateKey(key.round - 1, key.version, key.purpose)
    failed = ec.TrainFailed(market.job_id, key, Reason.SUSPECT_MODEL, "tensor 'w'", 0.0)
    told = [
        command.message
        for command in site.participant.handle(failed, 0.0)
        if isinstance(command, ec.SendMessage) and isinstance(command.message, m.NotReady)
    ]
    assert [each.reason for each in told] == [Reason.SUSPECT_MODEL]
