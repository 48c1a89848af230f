"""An offer is hostile input: whatever is in it, the answer is a refusal and not a crash."""

import asyncio
import dataclasses
import json

import pytest

from edge_node.offers import OfferDesk
from edge_node.store_schema import StoredJob
from privacy.errors import PeerError, Reason
from privacy.planning import CohortRules, derive_encoding
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
        asyncio.run(OfferDesk(None, None, None, None).accept(job, MANIFEST, None))
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
