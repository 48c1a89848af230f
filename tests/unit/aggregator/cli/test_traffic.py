"""``job submit --dry-run``: the sizes of updates and versions, and where they come from."""

import asyncio

import numpy as np
import pytest
from rich.console import Console

from aggregator import admission
from aggregator.cli.traffic import traffic_of
from aggregator.config import Limits
from privacy.errors import PeerError
from privacy.pipeline import EncodingPlan
from privacy.planning import CohortRules, derive_encoding
from privacy.spec import TensorSpec, VectorSpec
from tests.support.hostile_consortium import make_manifest
from tests.support.live_aggregator import NONE, RECORD, app_bundle, federation, job_toml
from tidegate import appbundle, convert
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile
from tidegate.v1 import operator_pb2 as pb

SPEC = VectorSpec(
    (TensorSpec("w", (200, 784)), TensorSpec("b", (200,)), TensorSpec("v", (10, 200)))
)
RULES = CohortRules(colluders=1, min_survivors=4, members=5)


def traffic(compression, privacy=NONE):
    raw = job_toml(privacy=privacy).replace(b'map = "identity"', compression.encode())
    job = JobFile.parse(raw)
    return traffic_of(job, derive_encoding(privacy_terms(job), SPEC, RULES, bytes(32)))


@pytest.mark.parametrize(
    ("compression", "privacy", "least", "says"),
    [
        ('map = "identity"', NONE, 1.0, "no sum can wrap"),
        ('target = "4x"', NONE, 3.9, "from the number of sites"),
        ('target = "100x"', NONE, 100.0, "1 matrices at rank"),
        ('target = "50x"', RECORD, 50.0, "five deviations"),
        ('map = "low-rank"\nrank = 2\nbits = 12', NONE, 50.0, "as [compression] says; the step"),
    ],
)
def test_sizes_and_reasons_are_those_of_the_plan(compression, privacy, least, says):
    found = traffic(compression, privacy)
    assert found.ratio_up >= least
    assert found.parameters == SPEC.length
    assert any(says in reason for reason in found.why), found.why
    assert found.bytes_down >= found.bytes_up * 0.9
    console = Console(width=200, record=True)
    console.print(found.table())
    assert f"{found.bytes_up:.0f}" in console.export_text()


def test_a_dry_run_keeps_nothing(tmp_path):
    async def scenario():
        async with federation(tmp_path) as live:
            toml = job_toml().replace(b'map = "identity"', b'target = "20x"')
            app = app_bundle()
            model = np.zeros(SPEC.length, "<f4").tobytes()
            header = pb.SubmitJobHeader(
                job_toml=toml,
                vector_spec=SPEC.to_bytes(),
                app_size=len(app),
                app_sha256=appbundle.digest(app),
                model_size=len(model),
                model_sha256=appbundle.digest(model),
                dry_run=True,
            )

            async def requests():
                yield pb.SubmitJobRequest(header=header)
                yield pb.SubmitJobRequest(data=app + model)

            answer = await live.api.SubmitJob(requests())
            assert not answer.job_id
            assert not (await live.api.ListJobs(pb.ListJobsRequest())).jobs
            return EncodingPlan.from_bytes(convert.dry_run_from_wire(answer))

    plan = asyncio.run(scenario())
    assert plan.low_rank is not None
    assert plan.bits == 8


def test_bases_that_no_train_request_carries_are_refused():
    spec = VectorSpec((TensorSpec("w", (8000, 8000)),))
    raw = job_toml().replace(b'map = "identity"', b'map = "low-rank"\nrank = 400')
    job = JobFile.parse(raw)
    plan = derive_encoding(privacy_terms(job), spec, RULES, bytes(32))
    members = tuple(f"bank-{number}" for number in range(1, 6))
    with pytest.raises(PeerError, match="lower \\[compression\\] rank"):
        admission._check_sizes(plan, make_manifest(members, 1, 4), Limits())
