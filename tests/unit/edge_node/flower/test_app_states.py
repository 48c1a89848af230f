"""What a Flower app remembers, over crashes at every moment."""

import asyncio

import pytest

from edge_node.commands import UpdateKey
from edge_node.flower import app_states
from edge_node.flower.app_states import StateChange
from privacy.errors import UsageError
from tests.support.flower_apps import FlowerPlace


@pytest.fixture
def place(tmp_path):
    return FlowerPlace(tmp_path)


@pytest.fixture(autouse=True)
def files_at_once(monkeypatch):
    """Put all but an empty state into files."""
    monkeypatch.setattr(app_states, "_SMALL_BYTES", 0)


def key(number, purpose="train"):
    return UpdateKey(number, number - 1, purpose)


def begin(place, number, job_id="job-1", purpose="train"):
    return asyncio.run(place.states.begin(job_id, key(number, purpose)))


def keep(place, number, before, after, job_id="job-1"):
    asyncio.run(place.states.keep(StateChange(job_id, key(number), before, after)))


def files(place):
    return sorted(path.name for path in place.folder.glob("site/app-states/*"))


def test_the_first_call_begins_with_nothing_and_a_round_moves_the_state_once(place):
    assert begin(place, 1) == b""
    keep(place, 1, b"", b"one")
    assert begin(place, 1) == b"", "the same update again begins where it began"
    assert begin(place, 1, purpose="evaluate") == b"one"
    assert begin(place, 2) == b"one"
    keep(place, 2, b"one", b"two")
    keep(place, 2, b"one", b"two again")
    assert begin(place, 2) == b"one"
    assert begin(place, 3) == b"two again"
    assert len(files(place)) == 2


def test_jobs_do_not_see_each_other(place):
    keep(place, 1, b"", b"one")
    keep(place, 1, b"", b"other", "job-12")
    place.store.jobs.end("job-1", "finished")
    place.states.forget("job-1")
    assert begin(place, 2, "job-12") == b"other"
    assert begin(place, 2) == b""
    assert len(files(place)) == 1


def test_it_is_kept_over_a_restart_in_files_of_the_owner_alone(place):
    keep(place, 1, b"", b"one")
    place.reopen()
    assert begin(place, 2) == b"one"
    (path,) = place.folder.glob("site/app-states/*")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_crash_before_the_row_leaves_the_old_state(place, monkeypatch):
    keep(place, 1, b"", b"one")

    def crash(*_):
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(place.store.jobs, "put_app_state", crash)
        with pytest.raises(OSError, match="killed"):
            keep(place, 2, b"one", b"two")
    assert len(files(place)) == 2
    place.reopen()
    assert begin(place, 2) == b"one"
    assert len(files(place)) == 1, "what no row names is removed"


def test_a_crash_after_the_row_has_the_new_state(place, monkeypatch):
    keep(place, 1, b"", b"one")
    keep(place, 2, b"one", b"two")
    with monkeypatch.context() as patched:
        patched.setattr(app_states.AppStates, "_tidy", lambda *_: None)
        keep(place, 3, b"two", b"three")
    assert len(files(place)) == 3
    place.reopen()
    assert begin(place, 4) == b"three"
    assert begin(place, 3) == b"two"
    assert len(files(place)) == 2


def test_a_state_that_does_not_change_is_not_written_again(place, monkeypatch):
    keep(place, 1, b"", b"one")
    monkeypatch.setattr(place.store.jobs, "put_app_state", lambda *_: pytest.fail("written"))
    keep(place, 2, b"one", b"one")
    assert begin(place, 2) == b"one"
    assert begin(place, 3) == b"one"


def test_a_lost_file_is_said(place):
    keep(place, 1, b"", b"one")
    for path in place.folder.glob("site/app-states/*"):
        path.unlink()
    with pytest.raises(UsageError, match="job-1 remembers is lost"):
        begin(place, 2)


def test_a_state_can_be_emptied(place):
    keep(place, 1, b"", b"one")
    keep(place, 2, b"one", b"")
    assert begin(place, 3) == b""
    assert begin(place, 2) == b"one"


def test_a_small_state_lies_in_the_store_alone(place, monkeypatch):
    monkeypatch.setattr(app_states, "_SMALL_BYTES", 3)
    keep(place, 1, b"", b"one")
    assert files(place) == []
    keep(place, 2, b"one", b"four")
    assert len(files(place)) == 1
    place.reopen()
    assert begin(place, 2) == b"one"
    assert begin(place, 3) == b"four"
    keep(place, 3, b"four", b"#=")
    keep(place, 4, b"#=", b"")
    assert files(place) == []
    assert begin(place, 4) == b"#="
    assert begin(place, 5) == b""
