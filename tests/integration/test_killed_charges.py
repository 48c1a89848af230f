"""kill -9 between a charge, its mirror and the wire: never unpaid, never paid twice, never others.

See ``tests.support.killed_site``: a real store and ledger, one kill for each state on disk. SIGKILL
leaves what was written; what a loss of power may take back is the mirror's matter (`test_store`).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAST_STATES = 12  # an attempt has four durable steps, each in the database and in the mirror


def lives(folder, kind):
    """Kill a site in every state; give what each of its successors found."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_site", str(folder), kind],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", ["shared", "large"])
def test_a_charge_its_bytes_and_its_attempt_live_or_die_together(tmp_path, kind):
    found = lives(tmp_path, kind)
    assert len(found) >= LEAST_STATES
    for life in found:
        charged, sent, again = life["charges"], life["sent"], life["again"]
        assert len(charged) <= 1, "charged once, whatever was begun"
        assert charged or not sent, "a byte left that nobody paid for"
        assert life["charges_after_resending"] == charged, "coming back costs nothing"
        assert again.startswith(sent) or not again, "another vector went out for one charge"
        assert charged or not again
        # An attempt that goes on sends the bytes it was charged for, or had sent them all.
        assert not life["taken"] or not charged or again or len(sent) == len(life["sent_anew"])
        # The next attempt has an update, a charge and bytes of its own.
        assert (life["ready"], life["outcome"], life["survived"]) == (True, "published", True)
        assert life["charges_at_end"][: len(charged)] == charged
        assert len(life["charges_at_end"]) == len(charged) + 1
        assert life["sent_anew"] != sent
        assert life["left_over"] == [], "nothing of a dead attempt stays"
    # The kills did fall before, between and after charge and bytes.
    cases = {(bool(life["charges"]), bool(life["sent"]), bool(life["again"])) for life in found}
    assert {(False, False, False), (True, False, True), (True, True, True)} <= cases


def test_a_retry_serves_one_charge_and_its_update_lies_in_one_place(tmp_path):
    found = lives(tmp_path, "retry")
    for life in found:
        charged = life["charges"]
        assert len(charged) <= 1, "the second sending was charged as well"
        assert charged or not life["sent"], "a byte left that nobody paid for"
        assert life["charges_after_resending"] == charged, "coming back costs nothing"
        assert life["copies"] <= 1, "one update for two attempts"
        assert charged or not life["copies"]
        assert life["served"] in ([], charged)
        # Nobody proves anything to the next life: a fresh update, and a charge of its own.
        assert (life["ready"], life["outcome"], life["survived"]) == (True, "published", True)
        assert len(life["charges_at_end"]) == len(charged) + 1
        assert life["sent_anew"] not in life["sent"]
        assert life["left_over"] == []
    # The kills did fall before and after the update was held, and after it was bound again.
    cases = {(bool(life["charges"]), bool(life["served"]), life["copies"]) for life in found}
    assert {(False, False, 0), (True, False, 1), (True, True, 1)} <= cases


def test_local_steps_are_paid_before_the_first_one_runs_and_never_given_back(tmp_path):
    found = lives(tmp_path, "local")
    for life in found:
        assert life["charges"] or not life["ran"], "a local step ran that nobody paid for"
        assert len(life["charges"]) <= 1
        assert life["charges_after_resending"] == life["charges"]
        assert life["charges"] or not life["sent"]
        assert len(life["charges_at_end"]) == len(life["charges"]) + 1
        assert (life["outcome"], life["survived"]) == ("published", True)
    assert {(False, False), (True, False), (True, True)} <= {
        (bool(life["charges"]), life["ran"]) for life in found
    }
