"""What must never be forgotten, doubled or rolled back."""

import os
import shutil
import sqlite3

import pytest

from edge_node import boot_key
from edge_node.boot_key import BootKey
from edge_node.mirror import Mirror, MirrorState
from edge_node.store import Store
from edge_node.store_schema import (
    StepRecord,
    StoredAttempt,
    StoredBundle,
    StoredJob,
    connect,
    read_ledgers,
)
from privacy.errors import PeerError, Reason, UsageError

KEY = BootKey(b"k" * 32, fresh=False, on_memory=True)
CTX = b"c" * 32
SEED = b"s" * 32
SECRETS = b"t" * 96


class Site:
    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "state" / "site.db"
        self.mirror = folder / "generation"

    def open(self, key=KEY, **options):
        return Store(self.path, self.mirror, key, **options)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.fixture
def store(site):
    store = site.open()
    yield store
    store.close()


def attempt(number=1, ctx=CTX, serial=1, round_number=1):
    return StoredAttempt(ctx, "job-1", round_number, number, b"facts", SECRETS, serial)


def begin(store, ctx=CTX, number=1, round_number=1):
    serial = store.reserve_serials(1)[0]
    store.add_bundles([StoredBundle(serial, b"signed", SEED)], 512)
    begun = attempt(number, ctx, serial, round_number)
    store.commit_step(StepRecord(ctx, 1, b"d" * 32, b"slot one", begin=begun))


def step(number, ctx=CTX, **more):
    return StepRecord(ctx, number, b"d" * 32, b"slot", **more)


# --- pins and bundles ----------------------------------------------------------------------------


def test_a_pin_holds_for_good(store):
    store.pin("manifest", b"one")
    store.pin("manifest", b"one")
    with pytest.raises(PeerError) as caught:
        store.pin("manifest", b"two")
    assert caught.value.reason is Reason.EQUIVOCATION
    assert store.pinned("manifest") == b"one"


def test_serials_are_never_given_twice_not_even_after_a_restart(site):
    store = site.open()
    first = store.reserve_serials(3)
    store.close()
    store = site.open()
    assert set(first) & set(store.reserve_serials(3)) == set()
    store.close()


def test_a_bundle_is_burnt_with_step_one_and_only_once(store):
    begin(store)
    assert store.bundle(1) is None
    again = attempt(2, b"e" * 32, 1)
    with pytest.raises(PeerError) as caught:
        store.commit_step(StepRecord(b"e" * 32, 1, b"d" * 32, b"slot", begin=again))
    assert caught.value.reason is Reason.REPLAY
    assert store.slots(b"e" * 32) == {}


def test_the_oldest_bundles_beyond_the_bound_are_forgotten(store):
    store.add_bundles([StoredBundle(n, b"x", SEED) for n in range(1, 11)], 4)
    assert [n for n in range(1, 11) if store.bundle(n)] == [7, 8, 9, 10]


# --- slots and attempts --------------------------------------------------------------------------


def test_a_slot_is_written_once(store):
    begin(store)
    store.commit_step(step(2))
    with pytest.raises(PeerError) as caught:
        store.commit_step(StepRecord(CTX, 2, b"e" * 32, b"other"))
    assert caught.value.reason is Reason.EQUIVOCATION
    assert store.slots(CTX)[2] == b"slot"


def test_the_roster_of_a_sparse_cohort_is_kept_in_slot_0_which_begins_the_attempt(store):
    serial = store.reserve_serials(1)[0]
    store.add_bundles([StoredBundle(serial, b"signed", SEED)], 512)
    begun = attempt(4, CTX, serial, 1)
    store.commit_step(StepRecord(CTX, 0, b"d" * 32, b"roster", begin=begun))
    assert store.bundle(serial) is None
    assert store.last_accepted("job-1") == (1, 4)
    with pytest.raises(PeerError) as caught:
        store.commit_step(StepRecord(CTX, 0, b"e" * 32, b"another roster"))
    assert caught.value.reason is Reason.EQUIVOCATION
    store.commit_step(step(1))
    assert store.slots(CTX) == {0: b"roster", 1: b"slot"}


def test_attempts_only_go_forward(store):
    begin(store, number=3)
    assert store.last_accepted("job-1") == (1, 3)
    with pytest.raises(PeerError) as caught:
        begin(store, b"e" * 32, number=3)
    assert caught.value.reason is Reason.REPLAY
    begin(store, b"f" * 32, number=1, round_number=2)
    assert store.last_accepted("job-1") == (2, 1)
    assert store.last_accepted("job-2") == (-1, -1)


def test_a_crash_leaves_the_attempt_its_slots_and_its_update(site):
    store = site.open()
    begin(store)
    store.commit_step(step(2, update=b"\x01\x02"))
    store.close()
    store = site.open()
    (live,) = store.live_attempts()
    assert (live.ctx, live.secrets, live.facts, live.bundle) == (CTX, SECRETS, b"facts", b"signed")
    assert store.slots(CTX) == {1: b"slot one", 2: b"slot"}
    assert store.update_of(CTX) == b"\x01\x02"
    store.close()


def test_a_large_update_lies_in_a_file_of_its_own_and_goes_with_the_attempt(site):
    store = site.open()
    begin(store)
    update = os.urandom(5 << 20)
    store.commit_step(step(2, update=update))
    (path,) = (site.path.parent / "updates").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert update[:1000] not in path.read_bytes()
    assert store.update_of(CTX) == update
    store.erase(CTX)
    assert list((site.path.parent / "updates").iterdir()) == []
    store.close()


def test_an_erased_attempt_leaves_no_secret_but_its_place_in_the_order(store):
    begin(store)
    store.commit_step(step(2, update=b"u"))
    store.erase(CTX)
    assert store.live_attempts() == []
    assert store.slots(CTX) == {}
    assert store.update_of(CTX) is None
    assert store.last_accepted("job-1") == (1, 1)


def test_secrets_lie_wrapped_in_the_database(site):
    store = site.open()
    store.add_bundles([StoredBundle(7, b"signed", SEED)], 512)
    begin(store)
    store.close()
    raw = b"".join(p.read_bytes() for p in site.path.parent.glob("site.db*"))
    assert SEED not in raw
    assert SECRETS not in raw
    assert b"slot one" not in raw


def test_a_new_boot_key_voids_stock_and_attempts_and_changes_the_instance(site):
    store = site.open()
    store.add_bundles([StoredBundle(9, b"signed", SEED)], 512)
    begin(store)
    instance = store.instance_id
    store.close()
    store = site.open(BootKey(b"n" * 32, fresh=True, on_memory=True))
    assert store.instance_id != instance
    assert store.bundle(9) is None
    assert store.live_attempts() == []
    assert store.slots(CTX) == {}
    assert store.last_accepted("job-1") == (1, 1), "the order of attempts outlives the key"
    store.close()


def test_another_key_that_claims_to_be_old_voids_too(site):
    store = site.open()
    begin(store)
    store.close()
    store = site.open(BootKey(b"n" * 32, fresh=False, on_memory=True))
    assert store.live_attempts() == []
    store.close()


# --- charge, generation, mirror ------------------------------------------------------------------


def budgeted(store):
    store.add_budget("credit", b"[]", "genesis")
    begin(store)


def test_charge_and_slot_are_one_transaction(store):
    budgeted(store)
    store.commit_step(step(2, charge=("credit", 1, b"entry", "head-1")))
    generation = store.generation
    with pytest.raises(PeerError):
        store.commit_step(step(2, charge=("credit", 2, b"entry two", "head-2")))
    (ledger,) = store.ledgers()
    assert (ledger.entries, ledger.head) == ((b"entry",), "head-1")
    assert store.generation == generation
    # A charge that cannot be written takes the slot with it.
    with pytest.raises(sqlite3.IntegrityError):
        store.commit_step(step(3, charge=("credit", 1, b"again", "head-2")))
    assert 3 not in store.slots(CTX)
    assert store.ledgers()[0].head == "head-1"


def test_every_step_moves_the_generation_and_the_mirror_together(site):
    store = site.open()
    before = store.generation
    begin(store)
    store.commit_step(step(2))
    assert store.generation == before + 2
    mirror = Mirror(site.mirror)
    assert mirror.read().generation == store.generation
    mirror.close()
    store.close()


def test_a_restored_backup_is_refused(site):
    store = site.open()
    budgeted(store)
    store.close()
    shutil.copytree(site.path.parent, site.folder / "backup")
    store = site.open()
    store.commit_step(step(2, charge=("credit", 1, b"entry", "head-1")))
    store.close()
    shutil.rmtree(site.path.parent)
    shutil.copytree(site.folder / "backup", site.path.parent)
    with pytest.raises(UsageError, match="restored from an older copy"):
        site.open()
    with pytest.raises(UsageError, match="edge-node reconcile"):
        site.open()


def test_a_crash_between_database_and_mirror_is_normal(site):
    store = site.open()
    begin(store)
    mirror = Mirror(site.mirror)
    behind = mirror.read()
    mirror.close()
    store.commit_step(step(2))
    generation = store.generation
    store.close()
    site.mirror.unlink()
    mirror = Mirror(site.mirror)
    mirror.write(behind)
    mirror.close()
    store = site.open()
    assert store.generation == generation
    store.close()
    mirror = Mirror(site.mirror)
    assert mirror.read().generation == generation, "the mirror catches up"
    mirror.close()


def test_a_lost_mirror_is_refused_once_there_is_something_to_lose(site):
    store = site.open()
    store.close()
    site.mirror.unlink()
    store = site.open()
    begin(store)
    store.close()
    site.mirror.unlink()
    with pytest.raises(UsageError, match=r"mirror file .* missing"):
        site.open()


def test_the_mirror_of_another_database_is_refused(site, tmp_path):
    other = Site(tmp_path / "other")
    other.folder.mkdir()
    other.open().close()
    store = site.open()
    begin(store)
    store.close()
    shutil.copy(other.mirror, site.mirror)
    with pytest.raises(UsageError, match="another database"):
        site.open()


def test_an_edited_ledger_of_the_right_age_is_noticed(site):
    store = site.open()
    budgeted(store)
    store.commit_step(step(2, charge=("credit", 1, b"entry", "head-1")))
    store.close()
    db = sqlite3.connect(site.path)
    db.execute("DELETE FROM ledger")
    db.execute("UPDATE budgets SET head = 'genesis'")
    db.commit()
    db.close()
    with pytest.raises(UsageError, match="edited"):
        site.open()


def test_a_torn_mirror_write_leaves_the_record_before(tmp_path):
    mirror = Mirror(tmp_path / "generation")
    assert mirror.read() is None
    for generation in (4, 5):
        mirror.write(MirrorState(b"s" * 16, generation, b"h" * 32))
    with (tmp_path / "generation").open("r+b") as file:
        file.seek(4096 * (5 % 2) + 20)
        file.write(b"torn")
    assert mirror.read().generation == 4
    mirror.close()


# --- jobs and the file ---------------------------------------------------------------------------

JOB = StoredJob("job-1", b"toml", b"a" * 32, 3, b"spec", b"plan")


def test_an_accepted_job_is_found_again_until_it_ends(site):
    store = site.open()
    store.jobs.put(JOB)
    with pytest.raises(PeerError) as caught:
        store.jobs.put(StoredJob("job-1", b"other", b"a" * 32, 3, b"spec", b"plan"))
    assert caught.value.reason is Reason.EQUIVOCATION
    store.close()
    store = site.open()
    assert store.jobs.unfinished() == [JOB]
    begin(store)
    store.jobs.end("job-1", "finished")
    assert store.jobs.unfinished() == []
    assert store.live_attempts() == []
    assert store.slots(CTX) == {}
    store.close()


def test_an_app_is_kept_by_its_digest_while_a_job_needs_it(store):
    import hashlib

    digest = hashlib.sha256(b"app").digest()
    store.jobs.put_app(digest, b"app")
    store.jobs.put_app(b"w" * 32, b"not what it is called")
    store.jobs.put(StoredJob("job-1", b"toml", digest, 3, b"spec", b"plan"))
    assert store.jobs.app(digest) == b"app"
    assert store.jobs.app(b"w" * 32) is None
    store.jobs.end("job-1", "finished")
    assert store.jobs.app(digest) is None


def test_the_database_is_closed_to_others_and_open_files_are_refused(site):
    store = site.open()
    assert site.path.stat().st_mode & 0o077 == 0
    store.close()
    site.path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        site.open()


def test_another_version_or_no_database_is_refused(site):
    site.path.parent.mkdir(mode=0o700)
    db = sqlite3.connect(site.path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    site.path.chmod(0o600)
    with pytest.raises(UsageError, match="version 99"):
        site.open()
    site.path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(UsageError, match="database"):
        site.open()


def test_a_reader_sees_a_running_daemons_ledger(site, store):
    budgeted(store)
    reader = connect(site.path, read_only=True)
    assert read_ledgers(reader)[0].dataset_id == "credit"
    with pytest.raises(sqlite3.OperationalError):
        reader.execute("DELETE FROM budgets")
    reader.close()
    with pytest.raises(UsageError, match="no database"):
        connect(site.folder / "none.db", read_only=True)


# --- boot key ------------------------------------------------------------------------------------


def test_the_boot_key_survives_the_process_and_is_private(tmp_path):
    folder = tmp_path / "boot"
    first = boot_key.load_or_make(tmp_path / "state", folder)
    second = boot_key.load_or_make(tmp_path / "state", folder)
    assert first.fresh
    assert not second.fresh
    assert first.key == second.key
    assert first.key.hex() not in repr(first)
    assert boot_key.key_path(tmp_path / "state", folder).stat().st_mode & 0o777 == 0o600
    other = boot_key.load_or_make(tmp_path / "other", folder)
    assert other.key != first.key


def test_a_boot_key_inside_the_sites_folder_or_open_to_others_is_refused(tmp_path):
    with pytest.raises(UsageError, match="inside"):
        boot_key.load_or_make(tmp_path, tmp_path / "boot")
    folder = tmp_path / "boot"
    boot_key.load_or_make(tmp_path / "state", folder)
    boot_key.key_path(tmp_path / "state", folder).chmod(0o644)
    with pytest.raises(UsageError, match="closed to all others"):
        boot_key.load_or_make(tmp_path / "state", folder)


def test_a_wrapped_secret_opens_only_in_its_place(tmp_path):
    key = boot_key.load_or_make(tmp_path / "state", tmp_path / "boot")
    sealed = key.wrap(b"secret", b"place one")
    assert key.unwrap(sealed, b"place one") == b"secret"
    with pytest.raises(UsageError):
        key.unwrap(sealed, b"place two")
    with pytest.raises(UsageError):
        key.unwrap(sealed[:-1] + bytes([sealed[-1] ^ 1]), b"place one")


# --- whose sum it was ----------------------------------------------------------------------------

SURVIVORS = (b"a" * 32, b"b" * 32, b"c" * 32)


def test_the_members_of_the_last_sum_outlive_restart_and_job(site, store):
    begin(store)
    assert store.last_sum("job-1") is None
    store.commit_step(step(4, sum_of=("job-1", SURVIVORS[:2])))
    begin(store, b"e" * 32, 2)
    store.commit_step(step(4, b"e" * 32, sum_of=("job-1", SURVIVORS)))
    store.erase(CTX)
    store.jobs.end("job-1", "finished")
    again = site.open()
    assert again.last_sum("job-1") == frozenset(SURVIVORS)
    assert again.last_sum("job-2") is None
    again.close()


def test_a_refused_step_does_not_change_the_last_sum(store):
    begin(store)
    store.commit_step(step(4, sum_of=("job-1", SURVIVORS)))
    with pytest.raises(PeerError):
        store.commit_step(step(4, sum_of=("job-1", SURVIVORS[:2])))
    assert store.last_sum("job-1") == frozenset(SURVIVORS)
