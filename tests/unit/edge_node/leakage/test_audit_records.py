"""Only the newest PASS of exactly what a job sends lets it pass, and not for ever."""

import dataclasses
import hashlib

import pytest

from edge_node.boot_key import BootKey
from edge_node.leakage.attacks import step_counts
from edge_node.leakage.records import (
    AuditRecord,
    NotAuditedError,
    check_audited,
    read_records,
    standing,
    write_record,
)
from edge_node.leakage.terms import AuditKey, audit_key, records_of, steps_of
from edge_node.policy import Policy
from edge_node.store import Store
from edge_node.store_schema import StoredJob, connect
from privacy.leakage.verdict import AUDIT_VERSION, Verdict
from privacy.planning import CohortRules, derive_encoding
from tests.support.live_aggregator import RECORD, SPEC, job_toml
from tests.support.site_simulation import make_manifest
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile
from tidegate.schema import Column, Schema

NOW_S = 2e9
DAY_S = 86_400.0
STRICT = Policy(
    require_leakage_audit=True,
    leakage_audit_days=30,
    allowed_apps=frozenset({(b"a" * 32).hex()}),
)
KEY = AuditKey(b"a" * 32, b"p" * 32, b"s" * 32)
RECORD_OF = AuditRecord(KEY, NOW_S, Verdict.PASS, "credit", "loans", 7, b"{}")
MANIFEST, _ = make_manifest([f"bank-{letter}" for letter in "abcde"])


@pytest.fixture
def store(tmp_path):
    boot = BootKey(b"k" * 32, fresh=False, on_memory=True)
    opened = Store(tmp_path / "state" / "site.db", tmp_path / "generation", boot)
    yield opened
    opened.close()


def write(tmp_path, *records):
    """Write records as the command does: through a connection of another process."""
    db = connect(tmp_path / "state" / "site.db")
    for record in records:
        write_record(db, record)
    db.close()


def test_a_record_written_beside_a_running_daemon_is_found_by_it_and_after_it(store, tmp_path):
    assert store.jobs.newest_audit(KEY) is None
    write(tmp_path, RECORD_OF)
    assert store.jobs.newest_audit(KEY) == RECORD_OF
    again = connect(tmp_path / "state" / "site.db", read_only=True)
    assert read_records(again) == [RECORD_OF]
    again.close()


@pytest.mark.parametrize("field", ["app_sha256", "plan_sha256", "schema_sha256", "version"])
def test_another_app_plan_schema_or_version_finds_nothing(store, tmp_path, field):
    write(tmp_path, RECORD_OF)
    other = 99 if field == "version" else b"x" * 32
    key = dataclasses.replace(KEY, **{field: other})
    assert store.jobs.newest_audit(key) is None
    with pytest.raises(NotAuditedError, match="no leakage audit"):
        check_audited(STRICT, None, "job-1", NOW_S)


@pytest.mark.parametrize("verdict", [Verdict.WARN, Verdict.FAIL, Verdict.NOT_APPLICABLE])
def test_nothing_but_a_pass_lets_a_job_pass_and_the_newest_counts(store, tmp_path, verdict):
    check_audited(STRICT, RECORD_OF, "job-1", NOW_S)
    write(tmp_path, RECORD_OF, dataclasses.replace(RECORD_OF, verdict=verdict, seed=8))
    newest = store.jobs.newest_audit(KEY)
    assert newest.verdict is verdict
    with pytest.raises(NotAuditedError, match=f"said {verdict}"):
        check_audited(STRICT, newest, "job-1", NOW_S)
    check_audited(Policy(), newest, "job-1", NOW_S)
    write(tmp_path, RECORD_OF)
    check_audited(STRICT, store.jobs.newest_audit(KEY), "job-1", NOW_S)


@pytest.mark.parametrize(("days", "passes"), [(0, 1), (30, 1), (30.01, 0), (-0.9, 1), (-1.1, 0)])
def test_an_old_audit_or_one_of_the_future_does_not_count(days, passes):
    now_s = NOW_S + days * DAY_S
    if passes:
        check_audited(STRICT, RECORD_OF, "job-1", now_s)
    else:
        with pytest.raises(NotAuditedError, match="older than 30 days"):
            check_audited(STRICT, RECORD_OF, "job-1", now_s)


def test_the_list_says_which_audits_count():
    older = dataclasses.replace(RECORD_OF, seed=1)
    failed = dataclasses.replace(RECORD_OF, verdict=Verdict.FAIL)
    foreign = dataclasses.replace(
        RECORD_OF, key=dataclasses.replace(KEY, version=AUDIT_VERSION + 1)
    )
    counts = [each for _, each in standing([RECORD_OF, older, foreign], STRICT, NOW_S)]
    assert counts == [True, False, False]
    assert [each for _, each in standing([failed, RECORD_OF], STRICT, NOW_S)] == [False, False]
    unreviewed = dataclasses.replace(STRICT, allowed_apps=frozenset())
    assert [each for _, each in standing([RECORD_OF], unreviewed, NOW_S)] == [False]


# --- what an audit is of --------------------------------------------------------------------------

SCHEMA = Schema((Column("a", low=0.0, high=1.0), Column("b", levels=3, low=0.0, high=2.0)))


def key_of(toml=None, app=b"a" * 32, schema=SCHEMA, manifest=MANIFEST, seed=b"m" * 32):
    job = JobFile.parse(toml or job_toml(privacy=RECORD))
    plan = derive_encoding(privacy_terms(job), SPEC, CohortRules(1, 4, 5), seed)
    return audit_key(app, job, plan, schema, manifest)


def test_names_and_public_seeds_are_no_part_of_what_is_audited():
    renamed = job_toml(privacy=RECORD, rounds=9, deadline=5.0).replace(b"credit test", b"other")
    assert key_of() == key_of(renamed) == key_of(seed=b"n" * 32)


def test_a_time_boxed_job_is_another_one_and_is_attacked_at_its_fewest_and_most_steps():
    toml = job_toml()
    boxed = toml.replace(b"[round]", b"[round]\ntime_box_s = 0.5")
    assert key_of(toml) != key_of(boxed)
    assert step_counts(4, time_boxed=True) == (1, 4)
    assert step_counts(4, time_boxed=False) == (4,)
    assert step_counts(1, time_boxed=True) == (1,)


def test_whatever_changes_what_is_sent_is_part_of_it():
    toml = job_toml(privacy=RECORD)
    few, _ = make_manifest([f"bank-{letter}" for letter in "abcd"], min_survivors=3)
    wide = Schema((Column("a", low=0.0, high=2.0), SCHEMA.columns[1]))
    plain = job_toml()
    others = [
        key_of(app=b"b" * 32),
        key_of(schema=wide),
        key_of(schema=Schema(SCHEMA.columns[:1])),
        key_of(manifest=few),
        key_of(toml.replace(b"noise_multiplier = 1.0", b"noise_multiplier = 1.1")),
        key_of(toml.replace(b"clipping_norm = 0.5", b"clipping_norm = 0.6")),
        key_of(toml.replace(b'file = "task.py"', b'file = "other.py"')),
        key_of(toml.replace(b'file = "task.py"', b'file = "task.py"\nseed = 4')),
        key_of(plain),
        key_of(plain.replace(b"batch_size = 8", b"batch_size = 4")),
        key_of(plain.replace(b"steps = 1", b"steps = 2")),
        key_of(plain.replace(b"learning_rate = 0.1", b"learning_rate = 0.2")),
    ]
    assert len({key_of(), *others}) == len(others) + 1


def test_small_batches_are_attacked():
    assert records_of(JobFile.parse(job_toml(privacy=RECORD)), MANIFEST) == 8
    small = JobFile.parse(job_toml().replace(b"batch_size = 8", b"batch_size = 2"))
    assert records_of(small, MANIFEST) == 2
    plan = derive_encoding(privacy_terms(small), SPEC, CohortRules(1, 4, 5), b"m" * 32)
    assert steps_of(small, plan) == 1


# --- offers that wait for their audit -------------------------------------------------------------


def test_an_unaudited_offer_and_its_app_are_kept_but_are_no_accepted_job(store):
    app = b"content"
    digest = hashlib.sha256(app).digest()
    offer = StoredJob("job-1", b"toml", digest, 3, b"spec", b"plan")
    store.jobs.put_app(digest, app)
    store.jobs.put_unaudited(offer)
    assert store.jobs.find("job-1") == offer
    assert store.jobs.unfinished() == []
    store.jobs.end("other-job", "finished")  # which sweeps apps that no job needs
    assert store.jobs.app(digest) == app
    store.jobs.put(offer)
    store.jobs.put_unaudited(offer)
    assert store.jobs.unfinished() == [offer], "an accepted job stays accepted"
    for number in range(40):
        store.jobs.put_unaudited(StoredJob(f"w-{number}", b"toml", digest, 3, b"spec", b"plan"))
    kept = [number for number in range(40) if store.jobs.find(f"w-{number}")]
    assert kept == list(range(24, 40))
