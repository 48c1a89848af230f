"""Whoever waits for a process that has ended is told so, and is not left waiting."""

import subprocess
import sys
import threading

import pytest

from aggregator.cli.consortium import Consortium
from privacy.errors import UsageError

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
FAIL = [sys.executable, "-c", "import sys; sys.exit('no disk left')"]


@pytest.fixture
def consortium(tmp_path):
    with Consortium(tmp_path, lambda _line: None) as made:
        yield made


def start(consortium, name, program):
    return consortium._start(name, program)


def test_a_process_that_ends_by_itself_ends_the_waiting_and_is_named(consortium):
    woken = threading.Event()
    start(consortium, "bank-1", SLEEP)
    start(consortium, "bank-2", FAIL)
    words = "bank-2 ended with exit status 1: no disk left"
    with pytest.raises(UsageError, match=words), consortium.guarded(woken.set):
        assert woken.wait(60)


def test_nothing_is_cancelled_while_all_run(consortium):
    process = start(consortium, "bank-1", SLEEP)
    woken = threading.Event()
    with consortium.guarded(woken.set):
        pass
    assert not woken.is_set()
    assert isinstance(process, subprocess.Popen)
    assert process.poll() is None
