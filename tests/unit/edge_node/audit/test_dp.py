"""The DP audit itself: the pipeline passes, each fault is noticed, and nothing stays broken."""

import dataclasses

import pytest

from edge_node.audit import dp, neighbours
from edge_node.audit.canaries import check_all_records, check_local_updates, check_whole_sites
from edge_node.audit.claims import check_plans
from edge_node.audit.counts import check_counts
from edge_node.audit.dp import REFUSED, Caught, DpReport, audit_dp
from edge_node.audit.finding import Finding
from edge_node.audit.mutants import MUTANTS, Mutant
from edge_node.audit.neighbours import (
    check_batch_size,
    check_hostile_records,
    check_memory,
    check_rounding,
)
from edge_node.audit.noise import (
    check_local_noise,
    check_shared_noise,
    check_site_noise,
    check_surplus_noise,
)
from edge_node.audit.samples import check_samples
from edge_node.audit.setting import SeededSecrets, Setting, secrets_from
from privacy.errors import UsageError

SEED = 20_261
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
NOTICED = [
    ("half-noise", check_shared_noise, "noise: variance"),
    ("half-noise", check_local_noise, "noise: variance"),
    ("half-noise", check_site_noise, "noise: variance"),
    ("half-noise", check_all_records, "canaries: Gaussian fit"),
    ("less-noise", check_shared_noise, "noise: variance"),
    ("last-bare", check_shared_noise, "noise: coordinates"),
    ("less-noise", check_local_noise, "noise: variance"),
    ("no-clip", check_all_records, "canaries: Gaussian fit"),
    ("no-clip", check_local_updates, "canaries: Gaussian fit"),
    ("no-clip", check_whole_sites, "canaries: Gaussian fit"),
    ("norm-unchecked", check_rounding, "neighbours: rounding"),
    ("seed-by-site", check_shared_noise, "noise: independence"),
    ("seed-by-site", check_local_noise, "noise: independence"),
    ("seed-by-round", check_shared_noise, "noise: independence"),
    ("rounding-omitted", check_rounding, "neighbours: rounding"),
    ("rounding-omitted", check_plans, "plan: sensitivity"),
    ("noise-for-clip", check_plans, "plan: noise"),
    ("noise-by-members", check_plans, "plan: noise"),
    ("noise-by-members", check_shared_noise, "noise: variance"),
    ("colluders-counted", check_shared_noise, "noise: variance"),
    ("surplus-of-colluders", check_surplus_noise, "noise: variance"),
    ("surplus-of-colluders", check_plans, "plan: noise"),
    ("eager-model", check_memory, "neighbours: memory"),
    ("bare-metrics", check_shared_noise, "noise: metrics"),
    ("bare-metrics", check_local_noise, "noise: metrics"),
    ("actual-batch", check_batch_size, "neighbours: batch size"),
    ("half-noise", check_counts, "noise: variance"),
    ("seed-by-site", check_counts, "noise: independence"),
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


def test_a_seed_repeats_the_run():
    checks = (check_samples, check_shared_noise)
    first, again = (audit_dp(SEED, Setting.short, (), checks) for _ in range(2))
    assert first == again
    assert first.findings != audit_dp(SEED + 1, Setting.short, (), checks).findings
    assert first.findings != audit_dp(None, Setting.short, (), checks).findings


@pytest.mark.parametrize(("name", "check", "expected"), NOTICED)
def test_a_fault_is_noticed(name, check, expected):
    setting = Setting.short(bytes(32))
    with secrets_from(SeededSecrets(bytes(32))), BY_NAME[name].applied():
        failed = [finding for finding in check(setting) if not finding.passed]
    assert expected in {finding.check for finding in failed}


def test_every_mutant_of_the_design_has_a_test():
    assert {name for name, _, _ in NOTICED} == set(BY_NAME)
    assert len(BY_NAME) == len(MUTANTS) == 16


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
    assert not DpReport((finding,), (), None, 1, 1).passed
    assert DpReport((dataclasses.replace(finding, passed=True),), (), None, 1, 1).passed


def test_the_worst_record_nearly_reaches_d2():
    """The check has power: without its rounding term D2 would be below what is measured."""
    for finding in check_rounding(Setting.short(b"")):
        assert finding.passed
        least, most = float(finding.claim.split()[0]), float(finding.claim.split()[-1])
        assert least < float(finding.measured) <= most
    assert all(finding.passed for finding in check_hostile_records(Setting.short(b"")))
