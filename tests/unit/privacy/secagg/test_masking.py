"""Masks: exact modulo 2^B, chunkable, cancelling; and uniform to whoever lacks one key."""

import numpy as np
import pytest
from scipy import stats

from privacy import ring
from privacy.errors import UsageError
from privacy.noise import NoisedUpdate
from privacy.secagg import prg
from privacy.secagg.masking import apply_terms, mask, mask_and_pack, unmask
from privacy.secagg.messages import MaskTerm
from privacy.secagg.prg import add_keystreams, keystream
from tests.support.secagg_harness import Federation, seed

KEY = seed("mask")


def update(values):
    return NoisedUpdate(np.asarray(values, dtype=np.int64))


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, prg.CHUNK_WORDS - 1, prg.CHUNK_WORDS + 5])
def test_adding_in_chunks_is_adding_at_once(length):
    whole_d = keystream(KEY, length, 32)
    for cut in {0, 4, min(4096, length - length % 4)}:
        parts_d = np.zeros(length, dtype=np.uint32)
        add_keystreams(parts_d[:cut], [(KEY, 1)])
        if cut <= length:
            add_keystreams(parts_d[cut:], [(KEY, 1)], offset=cut)
        assert parts_d.tolist() == whole_d.tolist()


def test_the_keystream_does_not_depend_on_the_chunk(monkeypatch):
    whole_d = keystream(KEY, 1000, 20)
    monkeypatch.setattr(prg, "CHUNK_WORDS", 64)
    assert keystream(KEY, 1000, 20).tolist() == whole_d.tolist()


def test_minus_takes_off_what_plus_put_on():
    acc_d = np.arange(10, dtype=np.uint32)
    add_keystreams(acc_d, [(KEY, 1)])
    assert acc_d.tolist() != list(range(10))
    add_keystreams(acc_d, [(KEY, -1)])
    assert acc_d.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("acc_d", "key", "sign", "offset"),
    [
        (np.zeros(4, dtype=np.int32), KEY, 1, 0),
        (np.zeros((2, 2), dtype=np.uint32), KEY, 1, 0),
        (np.zeros(8, dtype=np.uint32)[::2], KEY, 1, 0),
        (np.zeros(4, dtype=np.uint32), KEY[:16], 1, 0),
        (np.zeros(4, dtype=np.uint32), KEY, 0, 0),
        (np.zeros(4, dtype=np.uint32), KEY, 1, 2),
        (np.zeros(4, dtype=np.uint32), KEY, 1, -4),
    ],
)
def test_add_keystreams_refuses(acc_d, key, sign, offset):
    with pytest.raises(UsageError):
        add_keystreams(acc_d, [(key, sign)], offset)


@pytest.mark.parametrize("bits", [8, 9, 20, 31, 32])
def test_a_masked_update_stays_in_the_ring_and_unmasks_exactly(bits):
    values = [0, 1, -1, 2**bits - 1, -(2**bits), 2**40 + 3, -(2**62)]
    terms = (MaskTerm(seed("a"), 1), MaskTerm(seed("b"), -1))
    masked = mask(update(values), terms, bits)
    assert masked.values_d.dtype == np.uint32
    assert int(masked.values_d.max()) < 2**bits
    back_d = masked.values_d.copy()
    unmask(back_d, [MaskTerm(term.key, -term.sign) for term in terms], bits)
    assert back_d.tolist() == [value % 2**bits for value in values]


def test_masking_leaves_the_update_alone():
    source = update([5, -5])
    mask(source, (MaskTerm(KEY, 1),), 20)
    assert source.vector_D.tolist() == [5, -5]


def test_nothing_leaves_bare():
    with pytest.raises(UsageError, match="in the clear"):
        mask(update([1]), (), 20)
    with pytest.raises(UsageError, match="vector of integers"):
        mask(NoisedUpdate(np.zeros(3)), (MaskTerm(KEY, 1),), 20)
    for bits in (7, 33):
        with pytest.raises(UsageError, match=r"outside 8\.\.32"):
            mask(update([1]), (MaskTerm(KEY, 1),), bits)


def test_terms_apply_by_chunk_too():
    terms = (MaskTerm(seed("a"), 1), MaskTerm(seed("b"), -1))
    whole_d = np.zeros(100, dtype=np.uint32)
    apply_terms(whole_d, terms)
    parts_d = np.zeros(100, dtype=np.uint32)
    for start in range(0, 100, 40):
        apply_terms(parts_d[start : start + 40], terms, offset=start)
    assert parts_d.tolist() == whole_d.tolist()


def chi_square_p(values_d, bits):
    """p-value that the top eight and the low eight bits are uniform."""
    worst = 1.0
    for byte_d in (values_d >> np.uint32(bits - 8), values_d & np.uint32(255)):
        counts = np.bincount(byte_d.astype(np.int64), minlength=256)
        worst = min(worst, stats.chisquare(counts).pvalue)
    return worst


# Deterministic seeds: the p-values are fixed numbers. Twelve tests at 1e-6 would fail once in 10^5
# choices of seeds if the masks were perfect.
@pytest.mark.parametrize("bits", [8, 20, 32])
def test_masked_vectors_look_uniform(bits):
    federation = Federation(5, length=40_000, ring_bits=bits)
    for site in federation.sites:
        site.x_D = np.zeros(40_000, dtype=np.int64)  # the worst case: nothing but masks
    federation.run()
    uploads = [site.upload.values_d for site in federation.sites]
    for upload_d in uploads[:2]:
        assert chi_square_p(upload_d, bits) > 1e-6
    low = np.uint32((1 << bits) - 1) if bits < 32 else np.uint32(0xFFFFFFFF)
    # Any four of five: the missing pairwise masks keep the sum uniform.
    assert chi_square_p(sum(uploads[:4], np.uint32(0)) & low, bits) > 1e-6
    # Two sites' difference does not cancel anything either.
    assert chi_square_p((uploads[0] - uploads[1]) & low, bits) > 1e-6


def test_the_sum_of_all_uploads_is_still_masked_by_every_self_mask():
    # A late upload of a site declared lost must not open it: b covers it until b is revealed.
    federation = Federation(5, length=40_000, ring_bits=20)
    federation.run()
    total_d = sum((site.upload.values_d for site in federation.sites), np.uint32(0)) & np.uint32(
        2**20 - 1
    )
    assert chi_square_p(total_d, 20) > 1e-6


def test_x_with_pairwise_masks_alone_taken_off_is_still_uniform():
    federation = Federation(5, length=40_000, ring_bits=20)
    site = federation.site(1)
    site.x_D = np.zeros(40_000, dtype=np.int64)
    federation.upload_all()
    left_d = site.upload.values_d.copy()
    unmask(left_d, [MaskTerm(term.key, -term.sign) for term in site.terms[1:]], 20)
    assert chi_square_p(left_d, 20) > 1e-6
    unmask(left_d, [MaskTerm(site.terms[0].key, -1)], 20)
    assert not left_d.any(), "the test can tell: with b it is open"


@pytest.mark.parametrize("bits", [8, 13, 24, 32])
@pytest.mark.parametrize("length", [1, 64, prg.CHUNK_WORDS + 5, (1 << 18) + 3])
def test_masking_and_packing_at_once_gives_the_bytes_of_both(bits, length):
    values_D = np.random.default_rng(length).integers(-(2**40), 2**40, length)
    terms = (MaskTerm(seed("a"), 1), MaskTerm(seed("b"), -1), MaskTerm(seed("c"), 1))
    staged = ring.pack(mask(update(values_D), terms, bits).values_d, bits)
    assert mask_and_pack(update(values_D), terms, bits) == staged
    with pytest.raises(UsageError):
        mask_and_pack(update(values_D), (), bits)


def test_a_masked_vector_shares_no_memory_with_the_next():
    terms = (MaskTerm(seed("a"), 1),)
    first = mask_and_pack(update(range(9)), terms, 20)
    kept = bytes(first)
    mask_and_pack(update(range(50, 59)), (MaskTerm(seed("b"), 1),), 20)
    assert first == kept
