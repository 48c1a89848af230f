"""A held update lies in one place, serves one attempt, and goes with what may void it."""

import os

import pytest

from edge_node.boot_key import BootKey
from privacy.errors import PeerError, Reason
from tests.unit.edge_node.test_store import CTX, SECRETS, Site, begin, step

NEXT, LAST = b"n" * 32, b"l" * 32
SEEDS = b"s" * 64


@pytest.fixture
def store(tmp_path):
    store = Site(tmp_path).open()
    yield store
    store.close()


def held(store, update=b"x"):
    begin(store)
    store.commit_step(step(2, update=update))
    store.commit_step(step(3))
    store.hold(CTX, SEEDS)


def test_of_a_held_attempt_the_update_its_seeds_and_its_slots_stay(store):
    held(store)
    (kept,) = store.held_attempts()
    assert (kept.ctx, kept.secrets, kept.facts) == (CTX, SEEDS, b"facts")
    assert SECRETS not in kept.secrets
    assert store.live_attempts() == []
    assert set(store.slots(CTX)) == {1, 2, 3}
    assert store.update_of(CTX) == b"x"


def test_what_was_not_charged_or_may_be_released_is_erased_instead(store):
    begin(store)
    store.hold(CTX, SEEDS)
    assert store.held_attempts() == []
    begin(store, NEXT, 2)
    for number in (2, 3, 4):
        store.commit_step(step(number, NEXT, update=b"x" if number == 2 else None))
    store.hold(NEXT, SEEDS)
    assert store.held_attempts() == []
    assert store.slots(NEXT) == {}


def test_serving_moves_the_update_and_names_the_charge_along_the_chain(store):
    held(store)
    begin(store, NEXT, 2)
    store.commit_step(step(2, NEXT, update=b"x", serves=CTX))
    assert store.held_attempts() == []
    assert store.slots(CTX) == {}
    store.hold(NEXT, SEEDS)
    begin(store, LAST, 3)
    store.commit_step(step(2, LAST, update=b"x", serves=NEXT))
    assert store.held.served() == {NEXT: CTX, LAST: CTX}


@pytest.mark.parametrize("how", ["erased", "served", "never"])
def test_what_is_not_held_serves_nothing_and_nothing_is_written(store, how):
    held(store)
    if how == "erased":
        store.erase(CTX)
    elif how == "served":
        begin(store, NEXT, 2)
        store.commit_step(step(2, NEXT, update=b"x", serves=CTX))
    claimed = b"?" * 32 if how == "never" else CTX
    begin(store, LAST, 3)
    generation = store.generation
    with pytest.raises(PeerError) as caught:
        store.commit_step(step(2, LAST, update=b"x", serves=claimed))
    assert caught.value.reason is Reason.STOPPED
    assert set(store.slots(LAST)) == {1}
    assert store.generation == generation
    assert LAST not in store.held.served()


def test_an_update_that_is_charged_anew_ends_what_was_held(store):
    held(store)
    begin(store, NEXT, 2)
    store.commit_step(step(2, NEXT, update=b"y"))
    assert store.held_attempts() == []
    assert store.held.served() == {}


def test_a_large_held_update_keeps_its_file_until_it_serves(tmp_path):
    site = Site(tmp_path)
    store = site.open()
    update = os.urandom(5 << 20)
    held(store, update)
    store.close()
    store = site.open()
    assert store.update_of(CTX) == update
    begin(store, NEXT, 2)
    store.commit_step(step(2, NEXT, update=update, serves=CTX))
    (path,) = (site.path.parent / "updates").iterdir()
    assert path.stem == NEXT.hex()
    store.close()


def test_a_new_boot_key_and_the_end_of_the_job_void_it(tmp_path):
    site = Site(tmp_path)
    store = site.open()
    held(store)
    store.close()
    store = site.open(BootKey(b"o" * 32, fresh=False, on_memory=True))
    assert store.held_attempts() == []
    assert store.slots(CTX) == {}
    begin(store, NEXT, 2)
    store.commit_step(step(2, NEXT, update=b"x"))
    store.hold(NEXT, SEEDS)
    assert len(store.held_attempts()) == 1
    store.jobs.end("job-1", "stopped")
    assert store.held_attempts() == []
    store.close()
