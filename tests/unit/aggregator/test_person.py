"""What is stated for a person in several sites: the job's own epsilon for one, more for more."""

import dataclasses

import pytest

from aggregator.admission import admit
from aggregator.config import Limits
from aggregator.person import PersonEpsilon, state_person_epsilon
from privacy.accounting.cross_site import PersonAccountant
from privacy.planning import CohortRules, job_epsilon, person_epsilon, step_event
from tests.support.live_aggregator import NONE, RECORD, SPEC, app_bundle, job_toml
from tidegate import keys
from tidegate.job_terms import privacy_terms
from tidegate.manifest import Manifest, make_member
from tidegate.requests import SubmitHeader

SPKIS = [keys.spki_der(keys.make_key()) for _ in range(10)]
MEMBERS = tuple(
    make_member(f"bank-{n}", keys.fingerprint(SPKIS[5 + n]), SPKIS[n]) for n in range(5)
)
RULES = CohortRules(1, 4, 5)
LOCAL = """mode = "record-local"
epsilon = 8.0
delta_dp = 1e-5
sampling_rate = 0.05
clipping_norm = 0.5
expected_batch_size = 100
update_norm = 1.0
noise_multiplier = 1.5"""


def manifest(sites):
    return Manifest("demo", 1, 1, 4, MEMBERS, max_sites_per_person=sites)


def job_of(privacy=RECORD, rounds=10):
    toml = job_toml(rounds=rounds, privacy=privacy)
    if privacy == LOCAL:
        toml += b"[local]\nsteps = 3\nlearning_rate = 0.1\n"
    app, model = app_bundle(), bytes(4 * SPEC.length)
    header = SubmitHeader(toml, SPEC.to_bytes(), len(app), bytes(32), len(model), bytes(32))
    return admit(header, app, model, manifest(2), Limits(), 0.0)[0]


@pytest.mark.parametrize("privacy", [RECORD, LOCAL])
def test_for_one_site_it_is_the_jobs_own_epsilon(privacy):
    job = job_of(privacy)
    terms = privacy_terms(job.file)
    stated = state_person_epsilon(job, manifest(3), 0)
    assert stated.sites == 3
    assert stated.one_site == job_epsilon(job.plan, terms, RULES)
    assert stated.all_sites == person_epsilon(job.plan, terms, RULES, 3)
    assert stated.all_sites > stated.one_site


def test_every_repeated_attempt_is_one_release_more():
    job = job_of()
    terms = privacy_terms(job.file)
    for repeats in (1, 7):
        whole = dataclasses.replace(step_event(job.plan, RULES), steps=10 + repeats)
        expected = PersonAccountant(2).compose(whole).get_epsilon(terms.delta_dp)
        assert person_epsilon(job.plan, terms, RULES, 2, repeats) == pytest.approx(
            expected, rel=1e-12
        )


def test_without_noise_or_manifest_nothing_is_stated():
    assert state_person_epsilon(job_of(NONE), manifest(3), 0) == PersonEpsilon()
    assert state_person_epsilon(job_of(), None, 0) == PersonEpsilon()


def test_what_has_no_bound_is_capped_for_the_wire_and_never_small():
    job = job_of(RECORD.replace("epsilon = 3.0", "epsilon = 30.0"), rounds=4000)
    wide = Manifest("demo", 1, 1, 4, MEMBERS, max_sites_per_person=5)
    stated = state_person_epsilon(job, wide, 10**9)
    assert stated.all_sites == 1e9
