"""The shared linear map: lengths, orthonormality, refusals."""

import numpy as np
import pytest
from scipy.linalg import hadamard

from privacy.compress import LinearMap, MapKind, draw_signs
from privacy.errors import UsageError

SEED = bytes(range(32))


def rotation(length):
    return LinearMap(MapKind.ROTATION, length, 0, 0, SEED)


@pytest.mark.parametrize(
    ("length", "block", "mapped"),
    [
        (1, 1, 1),
        (7, 1, 7),
        (64, 64, 64),
        (250, 256, 256),
        (300, 64, 320),
        (5710, 1024, 6144),
        (40_000, 4096, 40_960),
    ],
)
def test_block_and_padded_length(length, block, mapped):
    assert (rotation(length).block, rotation(length).output_length) == (block, mapped)


@pytest.mark.parametrize("length", [4, 16, 64, 256, 1024, 4096])
def test_rotation_is_signs_then_hadamard(length):
    vector = np.random.default_rng(length).normal(size=length)
    expected = hadamard(length) @ (vector * draw_signs(SEED, length)) / np.sqrt(length)
    assert np.allclose(rotation(length).apply(vector), expected, atol=1e-12)


def test_rotation_of_powers_of_two_is_exact():
    spike = np.zeros(4096)
    spike[17] = 64.0
    assert set(np.abs(rotation(4096).apply(spike))) == {1.0}


def test_rotation_of_a_row_does_not_depend_on_its_batch_mates():
    batch = np.random.default_rng(3).normal(size=(70, 5710))
    mapped = rotation(5710).apply(batch)
    for row in (0, 1, 33, 69):
        assert np.array_equal(mapped[row], rotation(5710).apply(batch[row]))
        assert np.array_equal(mapped[row], rotation(5710).apply(batch[row : row + 1])[0])


@pytest.mark.parametrize("kind", [MapKind.RANDOM_K, MapKind.ROTATION_RANDOM_K])
def test_the_tail_passes_unchanged_and_nothing_is_scaled_up(kind):
    chosen = LinearMap(kind, 103, 3, 20, SEED)
    vector = np.random.default_rng(2).normal(size=103)
    mapped = chosen.apply(vector)
    assert chosen.output_length == mapped.size == 23
    assert np.array_equal(mapped[20:], vector[100:])
    assert np.linalg.norm(mapped) <= np.linalg.norm(vector)
    assert np.array_equal(chosen.adjoint(mapped)[100:], vector[100:])


def test_keeping_everything_keeps_everything():
    vector = np.random.default_rng(2).normal(size=96)
    chosen = LinearMap(MapKind.RANDOM_K, 96, 0, 96, SEED)
    assert np.array_equal(chosen.adjoint(chosen.apply(vector)), vector)


def test_another_seed_is_another_map():
    vector = np.arange(1.0, 257.0)
    other = LinearMap(MapKind.ROTATION, 256, 0, 0, bytes(32))
    assert not np.allclose(rotation(256).apply(vector), other.apply(vector))


@pytest.mark.parametrize(
    "arguments",
    [
        (MapKind.IDENTITY, 0, 0, 0, SEED),
        (MapKind.IDENTITY, 5, 0, 2, SEED),
        (MapKind.ROTATION, 5, 1, 0, SEED),
        (MapKind.RANDOM_K, 5, 5, 1, SEED),
        (MapKind.RANDOM_K, 5, 1, 5, SEED),
        (MapKind.RANDOM_K, 5, 1, 0, SEED),
        (MapKind.ROTATION, 5, 0, 0, SEED[:31]),
        (MapKind.ROTATION, 5, 0, 0, "seed"),
    ],
)
def test_impossible_maps_are_refused(arguments):
    with pytest.raises(UsageError):
        LinearMap(*arguments)


def test_vectors_of_another_length_are_refused():
    with pytest.raises(UsageError):
        rotation(64).apply(np.zeros(63))
    with pytest.raises(UsageError):
        rotation(250).adjoint(np.zeros(250))
