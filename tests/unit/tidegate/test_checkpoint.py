"""A checkpoint is a safetensors file whose layout is known before it comes."""

import hashlib

import numpy as np
import pytest
from safetensors.numpy import load

from privacy.errors import PeerError, Reason, UsageError
from tidegate.broadcast import ContentName
from tidegate.checkpoint import CHUNK_BYTES, CheckpointLayout, read_digests, root_of

LENGTHS = [1, 15, 16, 1000, CHUNK_BYTES // 4 - 40, CHUNK_BYTES // 4, 600_001]


def view(length, fields=("m_t", "v_t"), announcement=b"basis", seed=0):
    source = np.random.default_rng(seed)
    vectors = [source.normal(size=length).astype(np.float32) for _ in range(1 + len(fields))]
    state = dict(zip(fields, vectors[1:], strict=True))
    layout = CheckpointLayout(length, fields, len(announcement))
    return layout, layout.view(vectors[0], state, announcement), vectors


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("fields", "announcement"), [((), b""), (("m_t", "v_t"), b"basis")])
def test_a_file_is_what_safetensors_reads_and_comes_back(length, fields, announcement):
    layout, file, vectors = view(length, fields, announcement)
    raw = b"".join(file.chunks())
    assert len(raw) == file.size == layout.size
    assert len(layout.header) % 64 == 0
    tensors = load(raw)
    np.testing.assert_array_equal(tensors["model"], vectors[0])
    assert set(tensors) == {"model", *fields, *(["announcement"] if announcement else [])}
    model_D, state, announced = layout.split(bytearray(raw))
    np.testing.assert_array_equal(model_D, vectors[0])
    for field, vector_D in zip(fields, vectors[1:], strict=True):
        np.testing.assert_array_equal(state[field], vector_D)
    assert announced == announcement
    assert file.name.size == layout.size


@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_and_root_are_those_of_the_bytes(length):
    _, file, _ = view(length)
    raw = b"".join(file.parts)
    chunks = [raw[at : at + CHUNK_BYTES] for at in range(0, len(raw), CHUNK_BYTES)]
    digests = tuple(hashlib.sha256(chunk).digest() for chunk in chunks)
    assert file.digests == digests
    assert file.name.sha256 == root_of(digests)
    for offset, size in ((0, 7), (5, CHUNK_BYTES), (len(raw) - 3, 10), (60, 200), (0, 0)):
        assert bytes(file.read(offset, size)) == raw[offset : offset + size]
    joined = b"".join(digests)
    if len(digests) > 1:
        assert read_digests(joined, file.name) == digests
    for bad in (joined[:-32], joined + joined[:32], joined[:-1], bytes(len(joined)), b""):
        with pytest.raises(PeerError) as caught:
            read_digests(bad, file.name)
        assert caught.value.reason is Reason.WRONG_DIGEST
    longer = ContentName(file.name.sha256, file.size + CHUNK_BYTES)
    with pytest.raises(PeerError):
        read_digests(joined, longer)


def test_another_layout_is_refused():
    layout, file, vectors = view(20)
    raw = bytearray().join(file.parts)
    for other in (CheckpointLayout(20, ("m_t",), 5), CheckpointLayout(19, ("m_t", "v_t"), 5)):
        with pytest.raises(PeerError):
            other.split(raw)
    raw[12] ^= 1
    with pytest.raises(PeerError) as caught:
        layout.split(raw)
    assert caught.value.reason is Reason.MALFORMED
    good = {"m_t": vectors[1], "v_t": vectors[2]}
    for model_D, state, announcement in (
        (vectors[0][:-1], good, b"basis"),
        (vectors[0].astype(np.float64), good, b"basis"),
        (vectors[0], {"m_t": vectors[1]}, b"basis"),
        (vectors[0], good, b"other basis"),
    ):
        with pytest.raises(UsageError):
            layout.view(model_D, state, announcement)
