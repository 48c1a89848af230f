"""The DP audit itself: the pipeline passes, each fault is noticed, and nothing stays broken."""

import dataclasses

import pytest

from edge_node.audit import dp, neighbours
from edge_node.audit.canaries import check_canaries
from edge_node.audit.claims import check_plans
from edge_node.audit.dp import CHECKS, REFUSED, Caught, DpReport, audit_dp
from edge_node.audit.finding import Finding
from edge_node.audit.mutants import MUTANTS, Mutant
from edge_node.audit.neighbours import (
    check_batch_size,
    check_hostile_records,
    check_memory,
    check_rounding,
)
from edge_node.audit.noise import check_noise
from edge_node.audit.samples import check_samples
from edge_node.audit.setting import Setting
from privacy.errors import UsageError

SEED = 20_261
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
NOTICED = [
    ("half-noise", check_noise, "noise: variance"),
    ("half-noise", check_canaries, "canaries: Gaussian fit"),
    ("less-noise", check_noise, "noise: variance"),
    ("no-clip", check_canaries, "canaries: Gaussian fit"),
    ("norm-unchecked", check_rounding, "neighbours: rounding"),
    ("seed-by-site", check_noise, "noise: independence"),
    ("seed-by-round", check_noise, "noise: independence"),
    ("rounding-omitted", check_rounding, "neighbours: rounding"),
    ("rounding-omitted", check_plans, "plan: sensitivity"),
    ("noise-for-clip", check_plans, "plan: noise"),
    ("noise-by-members", check_plans, "plan: noise"),
    ("noise-by-members", check_noise, "noise: variance"),
    ("colluders-counted", check_noise, "noise: variance"),
    ("eager-model", check_memory, "neighbours: memory"),
    ("bare-metrics", check_noise, "noise: metrics"),
    ("actual-batch", check_batch_size, "neighbours: batch size"),
    ("oversampled", check_samples, "samples"),
]


@pytest.fixture(scope="module")
def report():
    return audit_dp(SEED, Setting.short, mutants=())


def test_every_claim_of_the_pipeline_holds(report):
    assert [finding for finding in report.findings if not finding.passed] == []
    assert report.passed
    assert {finding.check for finding in report.findings} >= {check for _, _, check in NOTICED}


def test_the_false_alarm_rate_is_below_one_in_ten_thousand(report):
    assert 0 < report.false_alarm < 1e-4
    whole = Setting.whole(b"")
    assert whole.coordinates == 1_000_000, "relative sd 0.14 %: one percent is seven deviations"
    assert whole.tolerance == 0.01


def test_a_seed_repeats_the_run(report):
    again = audit_dp(SEED, Setting.short, mutants=(), checks=(check_noise,))
    noise = tuple(finding for finding in report.findings if finding.check.startswith("noise"))
    measured = {finding.subject: finding.measured for finding in again.findings}
    assert len(measured) > 10
    assert audit_dp(SEED, Setting.short, mutants=(), checks=(check_noise,)) == again
    assert {finding.subject for finding in noise} == set(measured)


@pytest.mark.parametrize(("name", "check", "expected"), NOTICED)
def test_a_fault_is_noticed(name, check, expected):
    found = audit_dp(SEED, Setting.short, mutants=(BY_NAME[name],), checks=(check,))
    assert all(finding.passed for finding in found.findings)
    assert expected in found.mutants[0].checks
    assert found.passed


def test_every_mutant_of_the_design_has_a_test():
    assert {name for name, _, _ in NOTICED} == set(BY_NAME)
    assert len(BY_NAME) == len(MUTANTS) == 14


def test_a_fault_that_nothing_notices_fails_the_audit():
    harmless = Mutant("harmless", "nothing is wrong", dp.contextlib.nullcontext)
    report = audit_dp(SEED, Setting.short, mutants=(harmless,), checks=(check_memory,))
    assert report.mutants == (Caught("harmless", "nothing is wrong", ()),)
    assert not report.passed


def test_a_refusal_by_the_pipeline_counts_as_noticed():
    def refusing(_setting):
        if refusing.broken:
            raise UsageError("no")
        return []

    @dp.contextlib.contextmanager
    def broken():
        refusing.broken = True
        yield

    refusing.broken = False
    report = audit_dp(SEED, Setting.short, (Mutant("x", "x", broken),), (refusing,))
    assert report.mutants[0].checks == (REFUSED,)


def test_the_pipeline_is_whole_again_after_the_mutants():
    places = [
        (module, name)
        for module in (neighbours.pipeline, neighbours.local_steps, neighbours.row_draw)
        for name in dir(module)
    ]
    before = [getattr(module, name) for module, name in places]
    audit_dp(SEED, Setting.short, checks=(check_memory,))
    assert all(
        getattr(module, name) is kept for (module, name), kept in zip(places, before, strict=True)
    )


def test_a_failed_claim_fails_the_audit():
    finding = Finding("c", "s", "claim", "measured", passed=False)
    assert not DpReport((finding,), (), None).passed
    assert DpReport((dataclasses.replace(finding, passed=True),), (), None).passed


def test_the_worst_record_nearly_reaches_d2():
    """The check has power: without its rounding term D2 would be below what is measured."""
    for finding in check_rounding(Setting.short(b"")):
        assert finding.passed
        least, most = float(finding.claim.split()[0]), float(finding.claim.split()[-3])
        assert least < float(finding.measured) <= most
    assert all(finding.passed for finding in check_hostile_records(Setting.short(b"")))


def test_all_checks_are_in_the_audit():
    assert {check for _, check, _ in NOTICED} | {check_hostile_records} == set(CHECKS)
