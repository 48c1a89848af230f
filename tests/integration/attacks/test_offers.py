"""Jobs that a hostile aggregator offers: what would leave a record outside the accounting.

A refused offer charges nothing, runs nothing, and leaves the site ready for an honest one.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from edge_node.rounds import task_rounds
from privacy.errors import Reason
from privacy.pipeline import EncodingPlan
from tests.support.hostile_aggregator import ROUNDS, hostile
from tests.support.live_aggregator import RECORD, SPEC, job_toml
from tests.support.live_site import FakeTrainer, budgets
from tests.support.wire_runs import run
from tidegate import convert
from tidegate.v1 import federation_pb2, secagg_pb2, transfer_pb2


async def refuses(evil, reason, clause, offer=None, **changes):
    started = FakeTrainer.started
    reply = await evil.offer(offer, **changes)
    assert not reply.accepted
    assert reply.reason == reason, reply
    assert clause in reply.detail, reply
    assert FakeTrainer.started == started, "nothing of a refused job is run"


async def still_works(evil):
    assert (await evil.offer()).accepted
    assert evil.uploads == []
    await evil.goes_on(1)


def changed_plan(offer, **changes):
    """Bend numbers of the plan, in its one spelling."""
    fields = {**json.loads(offer.encoding), **changes}
    raw = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return replace(offer, encoding=raw)


# --- noise ----------------------------------------------------------------------------------------


WEAKER = {
    "noise_variance": (lambda plan: plan.noise_variance // 4, "noise_variance"),
    "sensitivity": (lambda plan: plan.sensitivity / 2, "sensitivity"),
    "clip_gradient": (lambda plan: plan.clip_gradient * 2, "sensitivity"),
    "sampling_rate": (lambda plan: plan.sampling_rate * 2, "sampling_rate"),
    "scale": (lambda plan: plan.scale * 2, "sensitivity"),
    "bits": (lambda plan: plan.bits + 1, "bits"),
    "n_max": (lambda plan: plan.n_max // 2, "n_max"),
}


@pytest.mark.parametrize("field", WEAKER)
def test_a_plan_with_less_noise_than_its_epsilon_needs_is_refused(tmp_path, field):
    """The site derives V_site * m_h >= (z * D2)^2 itself, from c and N_min of its manifest."""

    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            offer = evil.make_job()
            weaker, clause = WEAKER[field]
            value = weaker(EncodingPlan.from_bytes(offer.encoding))
            await refuses(evil, Reason.POLICY, clause, changed_plan(offer, **{field: value}))
            await still_works(evil)

    run(scenario())


def test_a_known_job_is_not_exchanged_for_one_with_less_noise(tmp_path):
    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            offer = evil.make_job()
            assert (await evil.offer(offer)).accepted
            plan = EncodingPlan.from_bytes(offer.encoding)
            weaker = changed_plan(offer, noise_variance=plan.noise_variance // 4)
            reply = await evil.offer(weaker)
            assert (reply.accepted, reply.reason) == (False, Reason.EQUIVOCATION)
            await evil.goes_on(1)

    run(scenario())


def test_more_exchanges_than_the_epsilon_was_counted_for_are_refused(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            answer = await evil.train(ROUNDS + 1)
            assert (answer.reason, evil.charges()) == (Reason.POLICY, 0)
            await evil.goes_on(ROUNDS)

    run(scenario())


# --- what a record could leave by -----------------------------------------------------------------


def test_per_site_top_k_is_refused(tmp_path):
    """At the largest 1 %, three quarters of the touched coordinates come from one site alone."""

    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            offer = evil.make_job()
            toml = offer.job_toml.replace(b'map = "identity"', b'map = "top-k"\nkeep = 0.01')
            assert toml != offer.job_toml
            await refuses(evil, Reason.MALFORMED, "map", offer, job_toml=toml)
            encoding = offer.encoding.replace(b'"identity"', b'"top-k"')
            assert encoding != offer.encoding
            await refuses(evil, Reason.MALFORMED, "", offer, encoding=encoding)
            await still_works(evil)

    run(scenario())


@pytest.mark.parametrize(
    "table",
    [b"[local]\nsteps = 4\nbatch_size = 8\nlearning_rate = 0.1\n", b"[local]\nmomentum = 0.9\n"],
    ids=["several local steps", "local momentum"],
)
def test_state_that_a_site_trained_itself_is_refused_in_record_distributed(tmp_path, table):
    """Gradients are taken at a published version only; own deltas carry records past the count."""

    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            offer = evil.make_job()
            await refuses(evil, Reason.MALFORMED, "local", offer, job_toml=offer.job_toml + table)
            await still_works(evil)

    run(scenario())


def test_an_app_that_nobody_reviewed_is_refused_in_modes_with_noise(tmp_path):
    """Outside its code only a sum is visible: code that is not ours could encode a record in it."""

    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            await refuses(evil, Reason.POLICY, "allowed_apps", app_sha256=b"x" * 32)
            await still_works(evil)

    run(scenario())


def test_a_job_without_noise_needs_the_sites_consent(tmp_path):
    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            await evil.site.stop()
            evil.change_policy(
                lambda text: text.replace(', "none"]', "]").replace("allow_no_dp = true", "")
            )
            evil.site.start()
            await evil.greet()
            await refuses(evil, Reason.POLICY, "modes", evil.make_job(job_toml()))
            await still_works(evil)

    run(scenario())


def test_code_that_skips_its_clip_moves_the_sum_by_no_more_than_the_clip(tmp_path, monkeypatch):
    """Gradients of norm 10^9 from the app: sampler, clip, sum and noise are Tidegate's own."""

    class Loud(FakeTrainer):
        async def record_gradients(self, model_D, rows_NC, on_chunk):
            gradients = np.full((len(rows_NC), self.job.spec.length), 1e9, np.float32)
            on_chunk(gradients, np.zeros((len(rows_NC), 0), np.float32), len(rows_NC))

    monkeypatch.setattr(task_rounds, "Trainer", Loud)

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            plan = evil.encoding
            bound = 200 * plan.sensitivity / np.sqrt(plan.length) + 10 * plan.noise_variance**0.5
            assert np.abs(attempt.x[attempt.victim]).max() <= bound
            await attempt.run_honestly()
            assert evil.charges() == 1

    run(scenario())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_counts_as_zero_and_stops_nothing(tmp_path, monkeypatch, value):
    """An abort that depends on the data would tell that the record is there."""

    class Poisoned(FakeTrainer):
        async def record_gradients(self, model_D, rows_NC, on_chunk):
            gradients = np.zeros((len(rows_NC), self.job.spec.length), np.float32)
            gradients[:, 3] = value
            on_chunk(gradients, np.zeros((len(rows_NC), 0), np.float32), len(rows_NC))

    monkeypatch.setattr(task_rounds, "Trainer", Poisoned)

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            noise = evil.encoding.noise_variance**0.5
            assert np.abs(attempt.x[attempt.victim]).max() <= 10 * noise
            await attempt.run_honestly()
            assert evil.charges() == 1

    run(scenario())


def test_an_empty_batch_is_sent_and_charged_like_any_other(tmp_path):
    """Q = 10^-6: the sample is empty, and neither a silence nor a shorter vector says so."""

    async def scenario():
        async with hostile(tmp_path, joined=False, rows=1) as evil:
            await evil.greet()
            toml = evil.toml.replace(b"sampling_rate = 0.01", b"sampling_rate = 0.000001")
            assert (await evil.offer(evil.make_job(toml))).accepted
            attempt = await evil.goes_on(1)
            assert np.count_nonzero(attempt.x[attempt.victim]) > SPEC.length // 2

    run(scenario())


# --- what has no field ----------------------------------------------------------------------------


OUTSIDE = ("weight", "metric", "loss", "accuracy", "num", "example", "count", "norm", "gradient")


def test_weights_and_metrics_have_no_field_outside_the_vector():
    """What a site may say in a round, field by field: nothing of it depends on its records."""
    names = set()
    for kind in federation_pb2.SessionRequest.DESCRIPTOR.fields:
        names |= {field.name for field in kind.message_type.fields}
    names |= {field.name for field in transfer_pb2.UploadHeader.DESCRIPTOR.fields}
    names |= {field.name for field in secagg_pb2.Bundle.DESCRIPTOR.fields}
    assert len(names) > 20
    assert not [name for name in names for word in OUTSIDE if word in name]


def bare_size(message):
    """Give a message's size on the wire without its signatures, which differ by a byte or two."""
    signatures = [getattr(message, "signature", b"")]
    signatures += [entry.signature for entry in getattr(message, "bundles", ())]
    return convert.site_message_to_wire(message).ByteSize() - sum(map(len, signatures))


def test_the_number_of_records_shows_in_no_frame(tmp_path):
    """Sites with 1 and with 5000 rows say and send exactly as much, byte for byte in length."""

    async def sizes(folder, rows):
        folder.mkdir()
        async with hostile(folder, rows=rows) as evil:
            await evil.goes_on(2)
            said = [(type(message).__name__, bare_size(message)) for message in evil.said]
            return said, [len(upload.data) for upload in evil.uploads]

    async def scenario():
        assert await sizes(tmp_path / "one", 1) == await sizes(tmp_path / "many", 5000)

    run(scenario())


# --- the ledger -----------------------------------------------------------------------------------


ALIAS = """
[datasets.again]
loader = "npz"
path = "rows.npz"
dataset_id = "credit"
"""


def test_a_data_set_under_another_name_has_no_second_budget(tmp_path):
    """The key is the id that the administrator declared: derived data sets charge the same one."""

    async def scenario():
        async with hostile(tmp_path, joined=False, site_toml=ALIAS) as evil:
            await evil.greet()
            await evil.site.stop()
            evil.change_policy(lambda text: text.replace('["credit"]', '["credit", "again"]'))
            evil.site.start()
            await evil.greet()
            for dataset in (b"credit", b"again"):
                toml = evil.toml.replace(b'dataset = "credit"', b'dataset = "%s"' % dataset)
                assert (await evil.offer(evil.make_job(toml))).accepted
                await evil.goes_on(1)
            (line,) = budgets(evil.site)
            assert (line.dataset_id, line.charges) == ("credit", 2)

    run(scenario())


def test_the_order_of_a_budget_stays_whatever_later_jobs_would_like(tmp_path):
    """The filter holds for an order fixed in advance: a job cannot choose it after the fact."""

    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            orders = set()
            for noise in (b"1.0", b"8.0", b"0.7"):
                toml = job_toml(privacy=RECORD, target=5).replace(
                    b"noise_multiplier = 1.0", b"noise_multiplier = " + noise
                )
                toml = toml.replace(b"epsilon = 3.0", b"epsilon = 30.0")
                assert (await evil.offer(evil.make_job(toml))).accepted
                await evil.goes_on(1)
                (line,) = budgets(evil.site)
                orders.add(line.alpha)
            assert len(orders) == 1
            assert line.charges == 3

    run(scenario())
