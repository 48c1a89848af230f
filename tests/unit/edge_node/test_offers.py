"""An offer is hostile input: whatever is in it, the answer is a refusal and not a crash."""

import asyncio
import dataclasses
import json

import pytest

from edge_node.offer_reading import read_offer
from edge_node.offers import OfferDesk
from edge_node.store_schema import StoredJob
from privacy.errors import PeerError, Reason
from privacy.planning import CohortRules, derive_encoding, evaluation_encoding
from tests.support import flower_apps
from tests.support.flower_apps import make_job
from tests.support.live_aggregator import RECORD, SPEC, job_toml
from tests.support.site_simulation import make_manifest
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile

MANIFEST, _ = make_manifest([f"bank-{letter}" for letter in "abcde"])


def offer(**values):
    toml = job_toml(**values)
    terms = privacy_terms(JobFile.parse(toml))
    plan = derive_encoding(terms, SPEC, CohortRules(1, 4, 5), b"m" * 32)
    return StoredJob("job-1", toml, b"a" * 32, 10, SPEC.to_bytes(), plan.to_bytes())


def refusal(job):
    # The desk reads an offer before it looks at anything of the site's own.
    with pytest.raises(PeerError) as caught:
        asyncio.run(OfferDesk(None, None, None, None, None).accept(job, MANIFEST, None))
    return caught.value.reason


def test_a_plan_whose_numbers_overflow_is_refused():
    honest = offer(privacy=RECORD)
    fields = json.loads(honest.encoding)
    fields |= {"mode": "site", "rounding": "conditional", "n_max": 0, "sampling_rate": 1.0}
    fields |= {"scale": 1e200}
    encoding = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    assert refusal(dataclasses.replace(honest, encoding=encoding)) is Reason.MALFORMED


def test_a_job_whose_numbers_overflow_is_refused():
    honest = offer()
    toml = honest.job_toml.replace(b"clipping_norm = 10.0", b"clipping_norm = 1e-308")
    assert refusal(dataclasses.replace(honest, job_toml=toml)) is Reason.MALFORMED


@pytest.mark.parametrize("field", ["job_toml", "vector_spec", "encoding"])
@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[" * 3000, b"{}", b"null", b"a = nan"])
def test_garbage_is_refused(field, raw):
    assert refusal(dataclasses.replace(offer(privacy=RECORD), **{field: raw})) in Reason


# --- the evaluations of Flower apps --------------------------------------------------------------


def flower_offer():
    job = make_job()
    terms = privacy_terms(job.job_file)
    rules = CohortRules(1, 4, 5)
    plan = derive_encoding(terms, flower_apps.SPEC, rules, b"m" * 32)
    evaluation = evaluation_encoding(terms, rules, plan, b"e" * 32)
    toml = (flower_apps.JOB % flower_apps.PLAIN).encode()
    spec = flower_apps.SPEC.to_bytes()
    return StoredJob("job-1", toml, b"a" * 32, 10, spec, plan.to_bytes(), evaluation.to_bytes())


def test_an_honest_flower_offer_isread_offer():
    reading = read_offer(flower_offer(), MANIFEST)
    assert reading.evaluation.gradient_length == 2


def test_an_evaluation_plan_is_offered_exactly_where_the_job_evaluates():
    honest = flower_offer()
    assert refusal(dataclasses.replace(honest, evaluation_encoding=b"")) is Reason.MALFORMED
    plain = offer(privacy=RECORD)
    changed = dataclasses.replace(plain, evaluation_encoding=honest.evaluation_encoding)
    assert refusal(changed) is Reason.MALFORMED


@pytest.mark.parametrize("raw", [b"\xff", b"[" * 3000, b"{}", b"null"])
def test_a_garbled_evaluation_plan_is_refused(raw):
    changed = dataclasses.replace(flower_offer(), evaluation_encoding=raw)
    assert refusal(changed) is Reason.MALFORMED


@pytest.mark.parametrize(("field", "value"), [("clip_gradient", 2.0), ("scale", 1e9), ("bits", 20)])
def test_another_evaluation_plan_than_the_sites_own_is_refused(field, value):
    honest = flower_offer()
    fields = json.loads(honest.evaluation_encoding)
    encoding = json.dumps(fields | {field: value}, sort_keys=True, separators=(",", ":")).encode()
    changed = dataclasses.replace(honest, evaluation_encoding=encoding)
    assert refusal(changed) is Reason.POLICY
