"""Real processes that are killed and stopped at each step: nothing is lost, charged twice, shown.

One federation serves all tests here; each runs a job of its own.
"""

import signal
import time
from collections import Counter

import pytest

from tests.support.real_federation import SITES, RealFederation

ENOUGH = 100_000
"""Rounds that no test lives to see."""


@pytest.fixture(scope="module")
def banks(tmp_path_factory):
    with RealFederation(tmp_path_factory.mktemp("banks"), print) as federation:
        federation.begin()
        yield federation


def goes_on(banks, job_id, rounds=3):
    start = banks.job(job_id).round
    return banks.until(job_id, lambda job: job.round >= start + rounds)


def takes_part_again(banks, job_id, *sites):
    begun = {site.site_id: site.rounds_in for site in banks.job(job_id).sites}
    return banks.until(
        job_id,
        lambda job: all(
            site.rounds_in >= begun[site.site_id] + 2 for site in job.sites if site.site_id in sites
        ),
    )


def check_books(banks, job_id):
    """Hold every ledger against the aggregator's attempts and what is shown."""
    banks.stop_job(job_id)
    job = banks.job(job_id)
    opened = banks.journal(job_id, "attempt-opened")
    committed = banks.journal(job_id, "round-committed")
    assert len(set(opened)) == len(opened), "an attempt number was used twice"
    assert [number for number, _ in committed] == list(range(1, len(committed) + 1))
    for site in job.sites:
        charges = banks.charges(site.site_id, job_id)
        assert not [c for c, times in Counter(charges).items() if times > 1], site.site_id
        assert set(charges) <= set(opened), f"{site.site_id} was charged for no attempt"
        assert len(charges) >= site.rounds_in, f"{site.site_id} gave a sum more than it paid for"
    return job


@pytest.mark.parametrize(
    "fault",
    ["Trained:4:late", "RosterArrived:4:after", "ShareDelivery:4:after", "SurvivorSet:4:before"],
)
def test_a_site_killed_at_a_step_costs_no_round_and_is_charged_once(banks, fault):
    job_id = banks.submit(ENOUGH)
    banks.arm("bank-2", f"{fault}:KILL")
    banks.struck("bank-2")
    goes_on(banks, job_id)
    banks.run_site("bank-2")
    takes_part_again(banks, job_id, "bank-2")
    job = check_books(banks, job_id)
    assert job.attempts_aborted == 0


def test_two_sites_killed_after_their_charge_reveal_nothing_and_come_back(banks):
    job_id = banks.submit(ENOUGH)
    lost = ("bank-1", "bank-4")
    for site in lost:
        banks.arm(site, "ShareDelivery:4:after:KILL")
    for site in lost:
        banks.struck(site)
    stalled = banks.until(job_id, lambda job: "STALLED" in job.detail)
    assert banks.journal(job_id, "round-committed")[-1][0] == stalled.round
    for site in lost:
        banks.run_site(site)
    takes_part_again(banks, job_id, *lost)
    check_books(banks, job_id)


def test_a_site_that_stands_still_is_waited_for_so_long_and_named(banks):
    job_id = banks.submit(ENOUGH)
    banks.arm("bank-3", "ShareDelivery:4:before:STOP")
    banks.struck("bank-3")
    goes_on(banks, job_id, rounds=2)
    banks.processes["bank-3"].send_signal(signal.SIGCONT)
    takes_part_again(banks, job_id, "bank-3")
    log = check_books(banks, job_id).log
    assert any("bank-3 dropped out: did not answer in time" in line for line in log), log
    assert any("goes on without bank-3: still training after 2 s" in line for line in log), log


def test_all_sites_hold_the_aggregators_bits_over_kills_and_a_root(banks):
    """Versions go out as sums: what sites keep on their disks is what replay gave them."""
    job_id = banks.submit(ENOUGH)
    goes_on(banks, job_id, 2)
    banks.kill("bank-5")
    banks.until(job_id, lambda job: job.round > 33, timeout_s=90.0)
    banks.run_site("bank-5")
    takes_part_again(banks, job_id, *SITES)
    banks.kill("aggregator")
    time.sleep(1.0)  # what a site holds is put on its disk beside its training
    kept, (version, model) = banks.kept_models(job_id), banks.newest_model(job_id)
    assert version > 33
    by_name = {name: {data for n, data in kept.values() if n == name} for name, _ in kept.values()}
    assert all(len(contents) == 1 for contents in by_name.values())
    newest = [data for name, data in kept.values() if name.startswith(f"{version}-")]
    assert all(data.endswith(model) for data in newest)
    assert len(by_name) <= 2, "a site is at the newest version or at the one before"
    banks.start_aggregator_again()
    goes_on(banks, job_id)
    takes_part_again(banks, job_id, *SITES)
    check_books(banks, job_id)


def test_an_aggregator_killed_twice_in_the_middle_takes_the_job_up_again(banks):
    job_id = banks.submit(ENOUGH)
    for _ in range(2):
        goes_on(banks, job_id)
        banks.kill("aggregator")
        banks.start_aggregator_again()
    goes_on(banks, job_id)
    takes_part_again(banks, job_id, *SITES)
    check_books(banks, job_id)
    banks.check_alive()
