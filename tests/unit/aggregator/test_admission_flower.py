"""A Flower job is taken with a plan for its sums and one for its evaluations, or refused."""

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest

from aggregator.admission import admit
from aggregator.config import Limits
from privacy.errors import PeerError, UsageError
from privacy.planning import CohortRules, check_evaluation
from tests.support.flower_rounds import SPEC
from tests.support.flower_site import PROJECT, flower_app, flower_job
from tests.support.site_simulation import make_manifest
from tidegate.job_terms import privacy_terms
from tidegate.messages import EVALUATE, TRAIN

NAMES = [f"bank-{index}" for index in range(5)]
SITE = b'mode = "site"\nepsilon = 30.0\ndelta_dp = 1e-5\n'


def submit(toml, app=None, **limits):
    manifest, _ = make_manifest(NAMES)
    header = SimpleNamespace(job_toml=toml, vector_spec=SPEC.to_bytes())
    model = np.zeros(SPEC.length, "<f4").tobytes()
    job, first = admit(header, app or flower_app(), model, manifest, Limits(**limits), 1.0)
    assert first.sha256 == hashlib.sha256(model).digest()
    return job, CohortRules(manifest.colluders, manifest.min_survivors, len(NAMES))


@pytest.mark.parametrize("privacy", [b'mode = "none"\n', SITE], ids=["none", "site"])
def test_a_job_has_a_plan_for_each_purpose(privacy):
    job, rules = submit(flower_job().replace(b'mode = "none"\n', privacy))
    assert job.plan_for(TRAIN) is job.plan
    assert job.plan_for("train.adapt") is job.plan
    evaluation = job.plan_for(EVALUATE)
    assert evaluation.gradient_length == 1
    assert evaluation.map_seed != job.plan.map_seed
    check_evaluation(evaluation, privacy_terms(job.file), rules, job.plan)


def test_a_job_without_evaluation_metrics_has_no_such_plan():
    toml = flower_job()
    job, _ = submit(toml[: toml.index(b"[[evaluation_metrics]]")] + toml[toml.index(b"[round]") :])
    assert job.evaluation_encoding == b""
    with pytest.raises(PeerError, match="evaluation_metrics"):
        job.plan_for(EVALUATE)


@pytest.mark.parametrize(
    ("toml", "app", "says"),
    [
        (flower_job(), {"pyproject.toml": "[project]\n"}, r"\[tool.flwr.app\]"),
        (
            flower_job(),
            {"pyproject.toml": PROJECT.replace('serverapp = "demo.server_app:app"', "")},
            "serverapp is missing",
        ),
        (flower_job(flower="[flower.run_config]\nepochs = 3"), {}, "sets 'epochs'"),
    ],
)
def test_an_app_that_cannot_drive_the_job_is_refused(toml, app, says):
    with pytest.raises(UsageError, match=says):
        submit(toml, flower_app(**app))


def test_replies_that_take_too_much_are_refused_before_the_job_runs():
    kept = 8 * 4 * SPEC.length
    submit(flower_job(), max_replay_bytes=kept)
    with pytest.raises(UsageError, match=f"take {kept} bytes") as caught:
        submit(flower_job(), max_replay_bytes=kept - 1)
    assert "[strategy]" in str(caught.value)
