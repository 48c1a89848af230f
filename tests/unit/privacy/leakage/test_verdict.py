"""Nothing is called safe that was not attacked, and no line is crossed unseen."""

import json
import math

import numpy as np
import pytest
from scipy.stats import binom

from privacy.errors import UsageError
from privacy.leakage.verdict import (
    Evidence,
    EvidenceKind,
    Exposure,
    Finding,
    Metric,
    Verdict,
    _lucky_hits,
    judge_cells,
    judge_labels,
    judge_pictures,
    judge_tokens,
    not_applicable,
    report_of,
    summary,
    worst_of,
)

NOTHING = -math.inf


def finding(verdict, exposure, attack="A3", evidence=None):
    return Finding(attack, "t", exposure, Metric.PSNR, 1.0, 1.0, verdict, "r", {}, evidence)


def missing(exposure):
    return not_applicable("A3", "t", exposure, Metric.PSNR, "no picture")


@pytest.mark.parametrize(
    ("score", "baseline", "best", "ssim", "verdict"),
    [
        (11.4, 10.0, NOTHING, NOTHING, Verdict.PASS),
        (11.6, 10.0, 13.0, 0.2, Verdict.WARN),
        (10.5, 10.0, 18.0, 0.2, Verdict.FAIL),  # one picture is enough
        (10.5, 10.0, 13.0, 0.5, Verdict.FAIL),
        (19.0, 18.9, NOTHING, NOTHING, Verdict.PASS),  # grey is as good
    ],
)
def test_pictures_are_judged_against_grey_and_by_the_best_one(score, baseline, best, ssim, verdict):
    assert judge_pictures(score, baseline, best, ssim) is verdict


@pytest.mark.parametrize(
    ("score", "baseline", "tokens", "verdict"),
    [
        (0.02, 0.01, 10_000, Verdict.PASS),
        (0.03, 0.01, 10_000, Verdict.WARN),
        (0.10, 0.01, 10_000, Verdict.FAIL),
        (1 / 16, 0.0005, 16, Verdict.PASS),  # one lucky hit
        (2 / 16, 0.0005, 16, Verdict.FAIL),
        (0.5, 0.3, 10_000, Verdict.PASS),  # a vocabulary of three
        (1.0, 1.0, 16, Verdict.PASS),
    ],
)
def test_tokens_are_judged_against_twice_chance(score, baseline, tokens, verdict):
    assert judge_tokens(score, baseline, tokens) is verdict


@pytest.mark.parametrize(("tokens", "chance"), [(16, 5e-4), (64, 0.02), (2000, 0.3), (5, 0.9)])
def test_luck_is_the_binomial_quantile(tokens, chance):
    assert _lucky_hits(tokens, chance) == int(binom.ppf(0.999, tokens, chance))


@pytest.mark.parametrize(
    ("score", "exact", "by_chance", "verdict"),
    [
        (0.35, 0, 0, Verdict.PASS),
        (0.36, 0, 0, Verdict.WARN),
        (0.20, 1, 0, Verdict.FAIL),  # any exact row
        (0.35, 2, 2, Verdict.PASS),  # a table of two columns
    ],
)
def test_cells_are_judged_against_matched_guesses_and_any_exact_row(
    score, exact, by_chance, verdict
):
    assert judge_cells(score, 0.305, exact, by_chance) is verdict


def test_label_counts_never_fail_by_themselves():
    assert judge_labels(1.0, 0.1) is Verdict.WARN
    assert judge_labels(0.83, 0.1) is Verdict.WARN
    assert judge_labels(0.81, 0.1) is Verdict.PASS


def test_the_worst_finding_decides_and_is_named():
    report = report_of(
        [
            finding(Verdict.PASS, Exposure.ALONE),
            finding(Verdict.FAIL, Exposure.SUM, "A2"),
            finding(Verdict.WARN, Exposure.SUM),
        ]
    )
    assert report.verdict is Verdict.FAIL
    assert "A2 on the sum of sites" in report.reason
    assert "A3" not in report.reason


def test_a_pass_needs_an_attack_on_records_of_each_exposure():
    both = [finding(Verdict.PASS, exposure) for exposure in Exposure]
    assert report_of(both).verdict is Verdict.PASS
    one = report_of([both[0], missing(Exposure.SUM)])
    assert one.verdict is Verdict.WARN
    assert "sum of sites" in one.reason
    labels_only = [finding(Verdict.PASS, exposure, "A1") for exposure in Exposure]
    assert report_of(labels_only).verdict is Verdict.WARN


def test_an_audit_in_which_nothing_applies_is_no_pass():
    report = report_of([missing(exposure) for exposure in Exposure])
    assert report.verdict is Verdict.WARN
    assert report.reason == "no attack applied, so nothing was shown"
    with pytest.raises(UsageError):
        report_of([])


def test_verdicts_are_ordered_by_how_bad_they_are():
    assert Verdict.NOT_APPLICABLE.rank < Verdict.PASS.rank < Verdict.WARN.rank < Verdict.FAIL.rank


def test_neither_repr_nor_summary_shows_a_record():
    secret = np.full((1, 2), 123456.0, dtype=np.float32)
    evidence = Evidence(EvidenceKind.ROWS, ("a", "b"), secret, secret, secret > 0)
    report = report_of([finding(Verdict.WARN, Exposure.ALONE, evidence=evidence)])
    told = json.dumps(summary(report), allow_nan=False)
    assert "123456" not in repr(report) + told + repr(evidence)


def test_a_summary_is_json_even_where_an_attack_did_not_apply():
    told = summary(report_of([missing(Exposure.ALONE)]))
    assert json.loads(json.dumps(told, allow_nan=False))["findings"][0]["score"] is None


def test_of_several_audits_the_worst_finding_of_each_attack_stands():
    def scored(verdict, score, exposure=Exposure.ALONE):
        return Finding("A3", "t", exposure, Metric.PSNR, score, 10.0, verdict, "r")

    few = report_of([scored(Verdict.FAIL, 30.0), scored(Verdict.PASS, 10.0, Exposure.SUM)])
    most = report_of([scored(Verdict.PASS, 9.0), scored(Verdict.PASS, 11.0, Exposure.SUM)])
    for reports in ([few, most], [most, few]):
        worst = worst_of(reports)
        assert worst.verdict is Verdict.FAIL
        assert [finding.score for finding in worst.findings] == [30.0, 11.0]
    none = report_of([missing(Exposure.ALONE), scored(Verdict.PASS, 10.0, Exposure.SUM)])
    assert worst_of([none, most]).findings[0].verdict is Verdict.PASS
    assert worst_of([most]) == most
