"""Rosters of a malicious aggregator: every rule of step 1 that is broken kills the attempt."""

from dataclasses import replace

import pytest

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg import commands as c
from privacy.secagg import statements
from privacy.secagg.cohort import admit
from privacy.secagg.keys import MLKEM768_X25519, P256, X25519, make_bundle
from privacy.secagg.messages import (
    BaseVersion,
    Roster,
    SignedBundle,
)
from privacy.secagg.rules import CohortPolicy, thresholds
from tests.support.secagg_harness import (
    NOW_S,
    Federation,
    refused,
    secrets_of,
    signed_bundle,
    signer,
    with_config,
)

ALL = (1, 2, 3, 4, 5)


# --- step 0 and 1: rosters ------------------------------------------------------------------------


def reroster(federation, names, serial=1, **plan):
    bundles = sorted(
        (signed_bundle(P256, name, serial) for name in names), key=lambda s: s.bundle.site
    )
    bases = tuple(BaseVersion(s.bundle.site, 7) for s in bundles)
    changed = replace(federation.plan, bases=bases, **plan)
    return Roster(federation.context, tuple(bundles), changed)


def test_a_phantom_that_is_not_in_the_manifest_is_refused():
    federation = Federation(5)
    roster = reroster(federation, [*federation.names, "phantom"])
    refused(federation.site(1), roster, Reason.UNAUTHENTICATED, "not in the sealed manifest")


def test_too_few_members_pinned_by_the_site_itself_are_refused():
    federation = Federation(5)
    site = federation.site(1)
    pins = frozenset(federation.members[:3])
    policy = replace(federation.policy, min_pinned_peers=3, own_pins=pins)
    refused(with_config(site, policy=policy), federation.roster, Reason.POLICY, "min_pinned_peers")
    pins = frozenset(federation.members[:4])
    site = with_config(federation.site(2), policy=replace(policy, own_pins=pins))
    assert site.feed(federation.roster)


def test_one_site_twice_in_the_roster_is_refused():
    federation = Federation(5)
    bundles = sorted([*federation.bundles, federation.bundles[2]], key=lambda s: s.bundle.site)
    roster = replace(federation.roster, bundles=tuple(bundles))
    refused(federation.site(1), roster, Reason.MALFORMED, "sorted by distinct")


def test_a_forged_bundle_is_refused():
    federation = Federation(5)
    other = federation.bundles[1].bundle
    forged = replace(other, m_pk=federation.bundles[1].bundle.c_pk, c_pk=other.m_pk)
    bundles = list(federation.bundles)
    bundles[1] = SignedBundle(forged, federation.bundles[1].signature)
    roster = replace(federation.roster, bundles=tuple(bundles))
    refused(federation.site(1), roster, Reason.BAD_SIGNATURE)


def swap_bundle(federation, index, bundle):
    key = signer(federation.context.suite, federation.site(index).name)
    bundles = list(federation.bundles)
    bundles[index - 1] = SignedBundle(bundle, key.sign(statements.bundle_statement(bundle)))
    return replace(federation.roster, bundles=tuple(bundles))


@pytest.mark.parametrize("which", ["c_pk", "m_pk"])
def test_the_same_key_twice_in_the_union_is_refused(which):
    federation = Federation(5)
    copied = replace(
        federation.bundles[2].bundle, c_pk=getattr(federation.bundles[3].bundle, which)
    )
    refused(federation.site(1), swap_bundle(federation, 3, copied), Reason.POLICY, "repeats a key")


def test_the_negative_of_an_honest_key_is_refused():
    # ECDH gives the x-coordinate alone: minus M agrees on the same masks as M (not in the design).
    federation = Federation(5)
    honest = federation.bundles[3].bundle.m_pk
    prime = 2**256 - 2**224 + 2**192 + 2**96 - 1
    negative = honest[:33] + (prime - int.from_bytes(honest[33:], "big")).to_bytes(32, "big")
    key = P256.private_key(bytes(32), c.Purpose.SHARE)
    assert P256.agree(key, negative) == P256.agree(key, honest)
    sybil = replace(federation.bundles[2].bundle, m_pk=negative)
    refused(federation.site(1), swap_bundle(federation, 3, sybil), Reason.POLICY, "repeats a key")


@pytest.mark.parametrize("suite", [X25519, MLKEM768_X25519], ids=lambda suite: suite.name)
def test_an_honest_x25519_key_plus_a_point_of_low_order_is_refused(suite):
    # A Sybil at the other end of the roster would take the masks between an honest site at this end
    # and everybody else off: their sum without that site would open, one below N_min - c.
    federation = Federation(5, suite=suite)
    honest = federation.bundles[0].bundle.m_pk
    inverse = pow(int.from_bytes(honest, "little"), -1, 2**255 - 19)
    sybil = replace(federation.bundles[4].bundle, m_pk=inverse.to_bytes(32, "little"))
    key = suite.private_key(bytes(32), c.Purpose.SHARE)
    assert suite.agree(key, sybil.m_pk) == suite.agree(key, honest)
    refused(federation.site(2), swap_bundle(federation, 5, sybil), Reason.POLICY, "repeats a key")


@pytest.mark.parametrize("suite", [X25519, MLKEM768_X25519], ids=lambda suite: suite.name)
def test_a_key_of_low_order_is_refused_before_anybody_is_charged(suite):
    federation = Federation(5, suite=suite)
    bad = replace(federation.bundles[2].bundle, m_pk=(1).to_bytes(32, "little"))
    refused(federation.site(1), swap_bundle(federation, 3, bad), Reason.MALFORMED, "low order")


def test_a_key_off_the_curve_is_refused():
    federation = Federation(5)
    bad = replace(federation.bundles[2].bundle, m_pk=b"\x04" + bytes(64))
    refused(federation.site(1), swap_bundle(federation, 3, bad), Reason.MALFORMED)


def test_an_old_bundle_is_refused():
    federation = Federation(5)
    old = replace(federation.bundles[2].bundle, not_after_s=int(NOW_S) - 1)
    refused(federation.site(1), swap_bundle(federation, 3, old), Reason.REPLAY, "not_after")


def test_a_bundle_of_another_consortium_is_refused():
    federation = Federation(5)
    other = replace(federation.bundles[2].bundle, consortium_id="D")
    refused(federation.site(1), swap_bundle(federation, 3, other), Reason.WRONG_CONTEXT)


def test_two_daemons_with_one_identity_do_not_join_with_the_others_bundle():
    federation = Federation(5)
    twin = federation.site(1)
    other = make_bundle(P256, secrets_of("twin", 1).bundle, twin.me, "c", b"other", 1, int(NOW_S))
    refused(twin, swap_bundle(federation, 1, other), Reason.EQUIVOCATION, "own bundle")


def test_an_attempt_is_never_accepted_twice():
    federation = Federation(5)
    site = with_config(federation.site(1), last_accepted=(7, 1))
    refused(site, federation.roster, Reason.REPLAY, "must increase")
    site = with_config(federation.site(2), last_accepted=(8, 0))
    refused(site, federation.roster, Reason.REPLAY, "must increase")
    site = with_config(federation.site(3), last_accepted=(6, 5))
    assert site.feed(federation.roster)


@pytest.mark.parametrize("name", ["suite", "consortium_id", "manifest_hash", "job_id", "attempt"])
def test_a_roster_under_another_name_is_dropped(name):
    federation = Federation(5)
    value = {"attempt": 2, "manifest_hash": b"other"}.get(name, "other")
    roster = replace(federation.roster, context=replace(federation.context, **{name: value}))
    with pytest.raises(PeerError, match="wrong-context"):
        federation.site(1).feed(roster)
    assert federation.site(1).aborted is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"encoding": b"no noise"}, Reason.POLICY),
        ({"ring_bits": 8}, Reason.POLICY),
        ({"length": 9}, Reason.POLICY),
        ({"colluders": 2, "min_survivors": 5}, Reason.POLICY),
        ({"min_survivors": 5}, Reason.POLICY),
        ({"min_survivors": 2}, Reason.POLICY),
        ({"colluders": 0}, Reason.POLICY),
        ({"chain_head": b"other model"}, Reason.POLICY),
    ],
    ids=str,
)
def test_a_plan_that_the_site_did_not_derive_is_refused(change, reason):
    federation = Federation(5)
    roster = replace(federation.roster, plan=replace(federation.plan, **change))
    refused(federation.site(1), roster, reason)
    assert not federation.site(1).slots


def bases(federation, versions):
    pairs = zip(federation.members, versions, strict=True)
    return replace(
        federation.roster,
        plan=replace(federation.plan, bases=tuple(BaseVersion(*pair) for pair in pairs)),
    )


@pytest.mark.parametrize(
    ("versions", "changes", "clause"),
    [
        ((6, 7, 7, 7, 7), {}, "misstates the version"),
        ((7, 7, 7, 7, 6), {}, "too stale"),
        ((7, 7, 7, 7, 8), {"staleness_cap": 3}, "not on this site's chain"),
        ((7, 7, 7, 7, 5), {"staleness_cap": 2, "noised": False}, "mixed bases"),
    ],
)
def test_bases_that_break_a_rule_are_refused(versions, changes, clause):
    federation = Federation(5)
    site = federation.site(1)
    with_config(site, plan=replace(site.config.plan, **changes))
    refused(site, bases(federation, versions), Reason.POLICY, clause)


def test_mixed_bases_within_the_cap_are_fine_with_noise():
    federation = Federation(5)
    site = federation.site(1)
    with_config(site, plan=replace(site.config.plan, staleness_cap=2))
    assert site.feed(bases(federation, (7, 7, 6, 7, 5)))


def test_bases_of_other_sites_than_the_cohort_are_refused():
    federation = Federation(5)
    plan = replace(federation.plan, bases=federation.plan.bases[:-1])
    refused(federation.site(1), replace(federation.roster, plan=plan), Reason.MALFORMED)


def test_concentrated_colluders_below_3c_are_refused():
    # c is absolute: a cohort cut down to 5 may hold both of 2 colluders.
    with pytest.raises(PeerError, match="3c"):
        thresholds(5, 2, 4)
    federation = Federation(6, 2, 5)
    small = reroster(federation, federation.names[:5])
    refused(federation.site(1), small, Reason.POLICY, "3c")


def test_a_cohort_below_min_cohort_is_refused_before_anything_is_charged():
    federation = Federation(6, 1, 5, min_cohort=6)
    small = reroster(federation, federation.names[:5])
    refused(federation.site(1), small, Reason.POLICY, "min_cohort")
    assert federation.site(1).charges == 0


def test_too_few_honest_sites_are_refused():
    federation = Federation(5, 1, 4)
    site = with_config(federation.site(1), policy=replace(federation.policy, min_honest=4))
    refused(site, federation.roster, Reason.POLICY, "min_honest")
    with pytest.raises(UsageError, match="never below 2"):
        CohortPolicy(1, 2, min_honest=1, small_cohort_consent=True)
    with pytest.raises(UsageError, match="consent"):
        CohortPolicy(1, 3, min_honest=2)


def test_roster_equivocation_is_caught_in_step_2():
    federation = Federation(5)
    other = Federation(5, serial=2)
    one_changed = list(federation.bundles)
    one_changed[4] = other.bundles[4]
    second = replace(federation.roster, bundles=tuple(one_changed))
    dealt = {1: federation.site(1).feed(federation.roster)[0]}
    for i in (2, 3, 4):
        dealt[i] = federation.site(i).feed(second)[0]
    with_config(federation.site(5)).own = other.site(5).own
    dealt[5] = other.site(5).feed(second)[0]
    refused(federation.site(1), federation.delivery(dealt, 1), Reason.BAD_SIGNATURE)
    assert federation.site(1).charges == 0


def test_admission_itself_checks_the_context():
    # The machine drops such frames before; admission does not rely on that.
    federation = Federation(5)
    site = federation.site(1)
    config = replace(site.config, context=replace(federation.context, attempt=2))
    with pytest.raises(PeerError, match="wrong-context"):
        admit(federation.roster, config, site.own, NOW_S)
    config = replace(site.config, suite=X25519)
    with pytest.raises(PeerError, match="wrong-context"):
        admit(federation.roster, config, site.own, NOW_S)
