"""What a site's time and bytes went into, on the terminal and in the report."""

import dataclasses
from io import StringIO

import pytest
from rich.console import Console

from aggregator.cli import report
from aggregator.cli.progress import job_table
from aggregator.cli.utilisation import Baseline, baseline_of, share_text, time_shares, time_text
from tests.support.live_aggregator import RECORD, job_toml
from tests.unit.aggregator.cli.test_report import facts
from tidegate.jobfile import JobFile


def site_of(train_s=0.0, exchange_s=0.0, wait_s=0.0, up=0, down=0):
    (site, *_) = facts().status.sites
    times = {"train_s": train_s, "exchange_s": exchange_s, "wait_s": wait_s}
    return dataclasses.replace(site, bytes_up=up, bytes_down=down, **times)


def test_shares_of_time_add_up_and_are_none_before_any_passed():
    assert time_shares(site_of(8.0, 1.0, 1.0)) == (0.8, 0.1, 0.1)
    assert time_text(site_of(8.0, 1.0, 1.0)) == "80/10/10"
    assert time_shares(site_of()) is None
    assert time_text(site_of()) == "-"


def test_bytes_of_both_directions_count_against_the_baselines():
    baseline = Baseline("b", round_bytes=1000)
    assert baseline.share(site_of(up=500, down=1500), rounds=2) == 0.5
    assert baseline.share(site_of(up=500), rounds=0) is None
    assert (share_text(0.5), share_text(0.0123), share_text(None)) == ("50 %", "1.2 %", "-")


@pytest.mark.parametrize(
    ("toml", "name"),
    [
        (job_toml(privacy=RECORD), "per-step fp32 synchronisation"),
        (job_toml(), "fp32 FedAvg, same local steps"),
    ],
)
def test_the_baseline_takes_as_many_steps_as_the_job(toml, name):
    assert baseline_of(JobFile.parse(toml), 25) == Baseline(name, 100)


def test_the_terminal_says_the_three_shares_and_the_baseline_in_eighty_columns():
    status = dataclasses.replace(facts().status, sites=(site_of(81.0, 4.0, 15.0, 500, 500),))
    console = Console(file=StringIO(), width=80)
    console.print(job_table(status, Baseline("fp32 FedAvg, same local steps", 100)))
    drawn = console.file.getvalue()
    assert "81/4/15" in drawn
    assert "compute / exposed communication / idle" in drawn
    assert "against fp32 FedAvg, same local steps" in drawn
    assert max(map(len, drawn.splitlines())) <= 80


def test_the_report_says_them_for_each_site(tmp_path):
    made = facts()
    sites = (site_of(81.0, 4.0, 15.0, 10**6, 10**6), *made.status.sites[1:])
    made = dataclasses.replace(made, status=dataclasses.replace(made.status, sites=sites))
    report.write(tmp_path / "report.html", made)
    text = (tmp_path / "report.html").read_text()
    assert "<td>81/4/15</td>" in text
    assert 'class="compute"' in text
    assert ">of fp32</th>" in text
