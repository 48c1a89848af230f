"""A second, naive implementation gives the same bytes from the same seeds, for every suite."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from privacy.secagg.keys import MLKEM768_X25519, P256, SUITES, X25519
from privacy.secagg.messages import DealtShares
from tests.support import secagg_naive as naive
from tests.support import suites_naive as by_suite
from tests.support.secagg_harness import Federation
from tests.support.sparse_cohorts import sparse


@pytest.mark.parametrize(
    ("gone", "bits", "suite"),
    [
        ({}, 20, P256),
        ({2: 1}, 20, P256),
        ({5: 2}, 32, P256),
        ({1: 0}, 9, P256),
        ({3: 3}, 31, P256),
        ({2: 1}, 20, X25519),
        ({2: 1}, 20, MLKEM768_X25519),
    ],
)
def test_masked_updates_and_sum_are_those_of_the_naive_one(gone, bits, suite):
    federation = Federation(5, ring_bits=bits, length=13, suite=suite)
    outcome = federation.run(gone, silent=True)
    rh = naive.roster_hash(federation.context, federation.bundles)
    mh = naive.plan_hash(federation.plan)
    dealt = [i for i in range(1, 6) if gone.get(i, 9) >= 1]
    survivors = [i for i in dealt if gone.get(i, 9) >= 2]
    total = np.zeros(13, dtype=object)
    for i in survivors:
        site = federation.site(i)
        _, m_seed = naive.bundle_seeds(site.secrets.bundle.seed)
        b = site.secrets.self_mask_seed
        agreed = {
            j: by_suite.mask_agree(suite.name, m_seed, federation.bundles[j - 1].bundle.m_pk)
            for j in dealt
            if j != i
        }
        y = naive.masked(site.x_D, i, agreed, b, rh, mh, bits)
        assert site.upload.values_d.tolist() == y
        total += y
    # Take the masks off in the naive way, from what t holders can interpolate.
    for i in survivors:
        b = federation.site(i).secrets.self_mask_seed
        total -= naive.stream(naive.hkdf(b, "self", rh, mh), 13, bits)
    for j in set(dealt) - set(survivors):
        _, m_seed = naive.bundle_seeds(federation.site(j).secrets.bundle.seed)
        for i in survivors:
            shared = by_suite.mask_agree(suite.name, m_seed, federation.bundles[i - 1].bundle.m_pk)
            stream = naive.stream(naive.hkdf(shared, "pair", rh, mh), 13, bits)
            total += np.array(stream, dtype=object) * (-1 if i < j else 1)
    assert (total % 2**bits).tolist() == outcome.total_D.tolist()
    assert outcome.total_D.tolist() == federation.expected_D(outcome.survivors).tolist()


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_dealt_shares_are_those_of_the_naive_one(suite):
    federation = Federation(5, suite=suite)
    dealt = federation.deal_all()
    rh = naive.roster_hash(federation.context, federation.bundles)
    for i in (1, 4):
        secrets = federation.site(i).secrets
        _, m_seed = naive.bundle_seeds(secrets.bundle.seed)
        shares = {
            kind: naive.polynomial_shares(value, secrets.coefficient_seed, kind, rh, i, 4, 5)
            for kind, value in (("b-share", secrets.self_mask_seed), ("m-share", m_seed))
        }
        assert naive.interpolate({x: shares["m-share"][x - 1] for x in (1, 2, 4, 5)}) == m_seed
        commitments = dealt[i].commitments
        assert commitments.self_seed == naive.digest("b", rh, i, secrets.self_mask_seed)
        for j in range(1, 6):
            both = shares["b-share"][j - 1] + shares["m-share"][j - 1]
            assert commitments.self_shares[j - 1] == naive.digest("b-share", rh, i, j, both[:33])
            assert commitments.mask_shares[j - 1] == naive.digest("m-share", rh, i, j, both[33:])
            if j == i:
                assert dealt[i].ciphertexts[j - 1] == b""
                continue
            reader_seed, _ = naive.bundle_seeds(federation.site(j).secrets.bundle.seed)
            ends = [federation.bundles[at - 1].bundle.c_pk for at in (i, j)]
            sealed = dealt[i].ciphertexts[j - 1]
            key = by_suite.share_key(suite.name, reader_seed, *ends, rh, sealed)
            nonce = i.to_bytes(4, "big") + j.to_bytes(4, "big") + bytes(4)
            expected = AESGCM(key).encrypt(nonce, both, naive.encode(rh, i, j))
            assert sealed[-82:] == expected
            assert len(sealed) == 82 + (1088 if suite is MLKEM768_X25519 else 0)
        root = naive.dealt_root(
            range(1, 6), dealt[i].ciphertexts, commitments.self_shares, commitments.mask_shares
        )
        body = naive.encode("share", rh, root, commitments.self_seed)
        spki = federation.pinned[federation.members[i - 1]]
        suite.verify(spki, dealt[i].signature, b"tidegate/sa/1 signature\x00" + body)


def test_a_sparse_cohort_deals_and_masks_as_the_naive_one():
    federation = sparse(12)
    assert federation.run().total_D is not None
    rh = naive.roster_hash(federation.context, federation.bundles)
    mh = naive.plan_hash(federation.plan)
    reveals = [naive.hkdf(site.secrets.bundle.seed, "seed-r") for site in federation.sites]
    seed = naive.graph_seed(rh, reveals)
    for i in (1, 7):
        site = federation.site(i)
        _, m_seed = naive.bundle_seeds(site.secrets.bundle.seed)
        holders = sorted([i, *naive.ring_neighbours(i, 12, 8, seed)])
        b = site.secrets.self_mask_seed
        agreed = {
            j: naive.agree(m_seed, "scalar-m", federation.bundles[j - 1].bundle.m_pk)
            for j in holders
            if j != i
        }
        y = naive.masked(site.x_D, i, agreed, b, rh, mh, 20)
        assert site.upload.values_d.tolist() == y
        coefficients = site.secrets.coefficient_seed
        shares = naive.polynomial_shares(b, coefficients, "b-share", rh, i, 7, 12)
        expected = [naive.digest("b-share", rh, i, j, shares[j - 1]) for j in holders]
        dealt = next(m for m in site.sent if isinstance(m, DealtShares))
        assert list(dealt.commitments.self_shares) == expected
        commitments = dealt.commitments
        root = naive.dealt_root(
            holders, dealt.ciphertexts, commitments.self_shares, commitments.mask_shares
        )
        body = naive.encode("share", rh, root, commitments.self_seed)
        spki = federation.pinned[site.me]
        federation.suite.verify(spki, dealt.signature, b"tidegate/sa/1 signature\x00" + body)
