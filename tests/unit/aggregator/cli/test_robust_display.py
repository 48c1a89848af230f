"""Groups and ring wraps are named on every surface: the table, the report, and over the wire."""

import dataclasses
import io

from rich.console import Console

from aggregator.cli.progress import FIRST_CHARGE, job_table, placed
from aggregator.cli.report import privacy_facts
from privacy.pipeline import EncodingPlan
from tests.support.live_aggregator import job_toml
from tests.unit.aggregator.cli.test_report import facts
from tidegate import convert
from tidegate.jobfile import JobFile

ROBUST = b'\n[robust]\ngroups = 5\ncombine = "trimmed-mean"\ntrim = 1\n'


def in_groups(status, wrap_rate=0.0):
    sites = tuple(
        dataclasses.replace(site, group=1 + number % 3) for number, site in enumerate(status.sites)
    )
    return dataclasses.replace(status, sites=sites, groups=3, wrap_rate=wrap_rate)


def drawn(status):
    console = Console(file=io.StringIO(), width=160)
    console.print(job_table(status))
    return console.file.getvalue()


def test_the_table_names_groups_and_warns_of_wraps_above_the_rate():
    plain = facts().status
    assert "group" not in drawn(plain)
    shown = drawn(in_groups(plain))
    assert "in 3 groups" in shown
    assert "ready (group 2)" in shown
    assert "wrapped" not in shown
    warned = drawn(in_groups(plain, wrap_rate=2e-4))
    assert "about 2.0e-04 of the newest sum's coordinates may have wrapped" in warned
    assert placed(plain.sites[0]) == "ready"


def test_what_sites_say_of_their_budgets_and_of_a_refusal_can_be_read():
    plain = facts().status
    shown = drawn(plain)
    assert FIRST_CHARGE in " ".join(shown.split())
    assert "bank-4: the app raised an error" in shown
    assert FIRST_CHARGE not in drawn(facts(private=False).status)
    empty = dataclasses.replace(plain, metrics={})
    assert "no metrics" in drawn(empty)
    assert "no metrics yet" not in drawn(empty)
    assert "no metrics yet" in drawn(dataclasses.replace(empty, state="running"))


def test_the_report_says_how_groups_are_combined_and_the_worst_wrap():
    made = facts()
    plan = EncodingPlan.from_bytes(made.history.encoding)
    job = JobFile.parse(job_toml(target=25) + ROBUST)
    rounds = (*made.history.rounds, dataclasses.replace(made.history.rounds[0], wrap_rate=3e-4))
    history = dataclasses.replace(made.history, rounds=rounds)
    rows = dict(privacy_facts(job, plan, history))
    assert rows["robust"].startswith("trimmed-mean of 5 groups' means, 1 at either end left out;")
    assert "up to 1 malicious sites" in rows["robust"]
    assert rows["ring wraps"].startswith("at most 3.0e-04 of a sum's coordinates")
    assert "; above 1e-05" in rows["ring wraps"]
    plain = dict(privacy_facts(JobFile.parse(job_toml()), plan, made.history))
    assert "robust" not in plain
    assert "not above" in plain["ring wraps"]


def test_groups_and_wraps_travel():
    status = in_groups(facts().status, wrap_rate=2e-4)
    sites = tuple(site for site in status.sites if site.site_id.startswith("bank"))
    status = dataclasses.replace(status, sites=sites)
    assert convert.job_status_from_wire(convert.job_status_to_wire(status)) == status
    history = facts().history
    rounds = (dataclasses.replace(history.rounds[0], groups=3, wrap_rate=0.25),)
    history = dataclasses.replace(history, rounds=rounds)
    assert convert.job_history_from_wire(convert.job_history_to_wire(history)) == history
