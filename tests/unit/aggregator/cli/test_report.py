"""A report shows what the API said, for every mode, and refers to nothing outside itself."""

import dataclasses
import math
import re

import numpy as np
import pytest

from aggregator.cli import model_card, report
from aggregator.cli.charts import curve
from aggregator.cli.job_facts import JobFacts, metadata_of
from privacy.errors import PeerError
from privacy.planning import CohortRules, derive_encoding
from tests.support.live_aggregator import RECORD, SPEC, job_toml
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile
from tidegate.requests import JobHistory, JobStatus, RoundRecord, SiteProgress

NAMES = ("bank-1", "bank-2", "bank-3", "bank-4", "<script>alert(1)</script>")


def facts(rounds=40, **changes):
    private = changes.pop("private", True)
    toml = job_toml(privacy=RECORD) if private else job_toml()
    job = JobFile.parse(toml)
    plan = derive_encoding(privacy_terms(job), SPEC, CohortRules(1, 4, 5), b"m" * 32)
    source = np.random.default_rng(3)
    sites = tuple(
        SiteProgress(
            site_id=name,
            state="ready",
            epsilon=2.5 if private else 0.0,
            bytes_up=1_200_000 + 1000 * number,
            bytes_down=2_000_000,
            train_s=20.0 + number,
            exchange_s=8.0,
            wait_s=5.0 - number,
            rounds_in=rounds - number,
            dropped=number,
            detail="the app raised an error" if number == 3 else "",
        )
        for number, name in enumerate(NAMES)
    )
    status = JobStatus(
        job_id="credit-1",
        name="credit <b>risk</b>",
        state="finished",
        detail="",
        round=rounds,
        rounds=40,
        attempts_aborted=2,
        submitted_at_s=1_790_000_000,
        metrics={"loss": 0.3, "auc": 0.85},
        sites=sites,
        elapsed_s=33.0,
        rounds_per_s=1.2,
        delta_dp=1e-5 if private else 0.0,
        unit="record" if private else "none",
        mode=job.privacy.mode,
        person_sites=3 if private else 0,
        epsilon_one_site=2.9991 if private else 0.0,
        epsilon_person=1e9 if private else 0.0,
        log=("12:00:01 attempt 3.1 aborted: <i>timeout</i>",),
    )
    curve = tuple(
        RoundRecord(
            n,
            1,
            5,
            0.8 * n,
            {
                "loss": 0.3 + 0.4 * math.exp(-n / 9) + source.normal(0, 0.01),
                "auc": 0.86 - 0.3 * math.exp(-n / 7) + source.normal(0, 0.005),
            },
        )
        for n in range(1, rounds + 1)
    )
    history = JobHistory(curve, SPEC.to_bytes(), plan.to_bytes(), b"a" * 32, b"m" * 32)
    provenance = {"job": "credit-1", "signature": "c2VjcmV0", "chain_head": "ab" * 32}
    return JobFacts(status, toml, history, provenance)


@pytest.mark.parametrize("private", [True, False])
def test_a_report_is_one_file_without_references(tmp_path, private):
    page = tmp_path / "report.html"
    report.write(page, facts(private=private))
    text = page.read_text()
    assert not re.search(r"(src|href|url|@import)\s*[=(]", text)
    assert "<script" not in text
    assert "<b>risk" not in text
    assert "bank-4: the app raised an error" in text
    assert text.count('class="line"') == 2
    assert "attempt 3.1 aborted" in text
    assert ("No differential privacy (mode none)" in text) is not private
    assert ("ε =" in text) is private


@pytest.mark.parametrize("private", [True, False])
def test_what_a_person_in_several_sites_risks_stands_in_report_and_card(tmp_path, private):
    made = facts(private=private)
    report.write(tmp_path / "report.html", made)
    model_card.write(tmp_path / "card.md", made)
    for file in ("report.html", "card.md"):
        text = (tmp_path / file).read_text()
        # Rounded up, and what is beyond any bound is never shown as a number.
        assert ("a person in 1 site" in text) is private
        assert ("ε ≤ 3.000" in text) is private
        assert ("a person in 3 sites" in text) is private
        assert ("ε ≤ ∞ (no bound)" in text) is private


def test_traffic_is_compared_with_the_baseline_by_name(tmp_path):
    page = tmp_path / "report.html"
    report.write(page, facts())
    assert "per-step fp32 synchronisation" in page.read_text()
    report.write(page, facts(private=False))
    assert "fp32 FedAvg, same local steps" in page.read_text()


def test_a_job_without_a_round_has_a_report_without_empty_charts_and_shares(tmp_path):
    page = tmp_path / "report.html"
    report.write(page, facts(rounds=0))
    text = page.read_text()
    assert "0 of 40" in text
    assert "of fp32" not in text
    assert "Where the time went" not in text


def test_what_one_sum_measured_stands_in_the_report_with_its_error(tmp_path):
    made = facts(rounds=1)
    metrics = {"auc": 0.71964, "auc_error": 0.0191, "records": 30013.4}
    status = dataclasses.replace(made.status, metrics=metrics)
    page = tmp_path / "report.html"
    report.write(page, dataclasses.replace(made, status=status))
    text = page.read_text()
    assert "0.71964 ± 0.019" in text
    assert "30,013.4" in text
    assert "auc_error" not in text


@pytest.mark.parametrize("high", [0.861, 197.0, 30013.4, 2.5e8, -1234.5])
def test_a_number_beside_an_axis_fits(high):
    chart = curve([(1, 0.0), (2, high)], "round", "x")
    assert all(len(label) <= 7 for label in re.findall(r'class="label"[^>]*>([^<]*)<', chart))


@pytest.mark.parametrize("private", [True, False])
def test_a_card_states_the_privacy(tmp_path, private):
    card = tmp_path / "card.md"
    model_card.write(card, facts(private=private))
    text = card.read_text()
    assert ("without differential privacy" in text) is not private
    assert ("(2.5000, 1e-05)" in text) is private
    assert "c2VjcmV0" not in text


@pytest.mark.parametrize(
    "raw", [b"", b"1234567", b"\xff" * 64, b"\x02" + bytes(7) + b"{}", b"\x02" + bytes(7) + b"[]"]
)
def test_a_file_without_facts_is_refused(raw):
    with pytest.raises(PeerError):
        metadata_of([raw])
