"""One-time bundles from a malicious member, at a real aggregator: copied, replayed, withheld."""

import logging
from dataclasses import replace

import pytest

from aggregator.config import Limits
from privacy.secagg.messages import SignedBundle
from privacy.secagg.statements import bundle_statement
from tests.support.live_aggregator import federation, job_toml
from tests.support.malicious_site import (
    CHEAT,
    EVERYONE,
    HONEST,
    deltas,
    everyone_is_there,
    finishes,
    make_site,
)
from tests.support.wire_runs import run
from tidegate import messages as m

P256_PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1


def signed_again(site, signed, **changes):
    bundle = replace(signed.bundle, **changes)
    return SignedBundle(bundle, site.signer.sign(bundle_statement(bundle)))


def negated(point):
    y = int.from_bytes(point[33:], "big")
    return point[:33] + (P256_PRIME - y).to_bytes(32, "big")


async def hands_in(live, make_bad, caplog, why):
    """Have the malicious site hand in one bad bundle: its session ends, those of others do not."""
    await everyone_is_there(live)
    cheat = live.sites[CHEAT]
    await cheat.send(m.BundleStock((make_bad(cheat, cheat.make_bundle()),)))
    await cheat.dead.wait()
    assert why in caplog.text
    await finishes(live, HONEST)
    live.connect(cheat)
    await finishes(live, EVERYONE, EVERYONE)


def few_bundles():
    """Make the third site one that leaves room in its stock."""
    return make_site({m.BundleStock: lambda site, stock: m.BundleStock(stock.bundles[:8])})


@pytest.mark.parametrize("negative", [False, True])
def test_a_copied_key_enters_no_stock_and_stops_nobody(tmp_path, caplog, negative):
    """A bundle with an honest site's key would kill every cohort that holds both."""
    caplog.set_level(logging.INFO)

    async def scenario():
        async with federation(tmp_path, delta_of=deltas, make_site=few_bundles()) as live:

            def copy(cheat, signed):
                key = next(iter(live.sites[0].secrets.values()))[0].bundle.m_pk
                return signed_again(cheat, signed, c_pk=negated(key) if negative else key)

            await hands_in(live, copy, caplog, "holds a key that is in stock")

    run(scenario())


BENT = {
    "of another consortium": ({"consortium_id": "other"}, "another consortium"),
    "of another instance": ({"instance_id": bytes(16)}, "another site or instance"),
    "long expired": ({"not_after_s": 1}, "expires too soon"),
    "with a serial that was here": ({"serial": 1}, "came before"),
    "off the curve": ({"m_pk": b"\x04" + b"\x07" * 64}, "curve"),
}


@pytest.mark.parametrize("case", BENT)
def test_a_bad_bundle_enters_no_stock(tmp_path, caplog, case):
    changes, why = BENT[case]
    caplog.set_level(logging.INFO)

    async def scenario():
        async with federation(tmp_path, delta_of=deltas, make_site=few_bundles()) as live:

            def bend(cheat, signed):
                return signed_again(cheat, signed, **changes)

            await hands_in(live, bend, caplog, why)

    run(scenario())


def test_an_honest_sites_bundle_cannot_be_handed_in_by_another(tmp_path):
    async def scenario():
        async with federation(tmp_path, delta_of=deltas, make_site=make_site()) as live:
            await everyone_is_there(live)
            cheat, honest = live.sites[CHEAT], live.sites[0]
            await cheat.send(m.BundleStock((honest.make_bundle(),)))
            await cheat.dead.wait()
            await finishes(live, HONEST, HONEST)

    run(scenario())


def test_a_member_without_bundles_is_left_out_and_comes_back_with_new_ones(tmp_path):
    """The stock is for two attempts; then it is empty, and nobody waits for it."""

    async def scenario():
        limits = Limits(bundle_stock=2)
        make = make_site()
        async with federation(tmp_path, delta_of=deltas, make_site=make, limits=limits) as live:
            await everyone_is_there(live)
            cheat = live.sites[CHEAT]
            cheat.bend, cheat.once = {m.BundleStock: lambda site, stock: None}, False
            job_id = await live.submit(job_toml(rounds=12, target=5, deadline=0.2))
            job = await live.watch(job_id, lambda job: job.round >= 4)
            assert {site.site_id: site.rounds_in for site in job.sites}["bank-3"] <= 2
            assert cheat.charged <= 2
            cheat.bend = {}
            await cheat.send(m.BundleStock((cheat.make_bundle(), cheat.make_bundle())))
            job = await live.watch(job_id)
            assert job.state == "finished"
            assert {site.site_id: site.rounds_in for site in job.sites}["bank-3"] > 2

    run(scenario())
