"""The order of tensors: flatten, unflatten, canonical bytes, refusals."""

import numpy as np
import pytest

from privacy.errors import PeerError, Reason
from privacy.spec import TensorSpec, VectorSpec

ARRAYS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([7, 8], dtype=np.float32),
    "t": np.array(9, dtype=np.float32),
}
SPEC = VectorSpec.of(ARRAYS)


def refused(reason, call, *args):
    with pytest.raises(PeerError) as caught:
        call(*args)
    assert caught.value.reason is reason


def test_flatten_follows_the_spec_not_the_mapping():
    backwards = dict(reversed(ARRAYS.items()))
    assert SPEC.flatten(backwards).tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]


def test_flatten_takes_strided_arrays():
    arrays = ARRAYS | {"w": np.asfortranarray(ARRAYS["w"])}
    assert SPEC.flatten(arrays).tolist() == SPEC.flatten(ARRAYS).tolist()


def test_unflatten_gives_views_of_the_right_shapes():
    flat = SPEC.flatten(ARRAYS)
    views = SPEC.unflatten(flat)
    assert {name: view.shape for name, view in views.items()} == {"w": (2, 3), "b": (2,), "t": ()}
    flat[3] = 42
    assert views["w"][1, 0] == 42
    assert all(np.shares_memory(view, flat) for view in views.values())


@pytest.mark.parametrize(
    "change",
    [
        {"w": ARRAYS["w"].T},
        {"w": ARRAYS["w"].astype(np.float64)},
        {"w": [[0.0] * 3] * 2},
        {"extra": ARRAYS["b"]},
    ],
    ids=["transposed", "float64", "list", "unknown"],
)
def test_flatten_refuses_what_does_not_fit(change):
    refused(Reason.WRONG_SHAPE, SPEC.flatten, ARRAYS | change)


def test_flatten_refuses_a_missing_tensor():
    refused(Reason.WRONG_SHAPE, SPEC.flatten, {"w": ARRAYS["w"], "b": ARRAYS["b"]})


@pytest.mark.parametrize(
    "flat",
    [
        np.zeros(8, np.float32),
        np.zeros(9),
        np.zeros((9, 1), np.float32),
        np.zeros(18, np.float32)[::2],
    ],
    ids=["short", "float64", "matrix", "strided"],
)
def test_unflatten_refuses_what_does_not_fit(flat):
    refused(Reason.WRONG_SHAPE, SPEC.unflatten, flat)


def test_bytes_are_an_inverse_and_name_the_order():
    assert VectorSpec.from_bytes(SPEC.to_bytes()) == SPEC
    swapped = VectorSpec(tuple(reversed(SPEC.tensors)))
    assert swapped.digest != SPEC.digest
    reshaped = VectorSpec((TensorSpec("w", (3, 2)), *SPEC.tensors[1:]))
    assert reshaped.digest != SPEC.digest


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        b"{}",
        b"[[]]",
        b"3",
        b'[["w",[2,3],1]]',
        b'[["w", [2,3]]]',
        b'[["w",[true]]]',
        b'[["w",[2.0]]]',
        b"[[1,[2]]]",
        b'["ab"]',
        b'[["\xc3\xa9",[1]]]',
        b"[" * 100_000,
    ],
)
def test_other_bytes_are_malformed(raw):
    with pytest.raises(PeerError) as caught:
        VectorSpec.from_bytes(raw)
    assert caught.value.reason in (Reason.MALFORMED, Reason.WRONG_SHAPE)


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (TensorSpec("", (1,)),),
        (TensorSpec("w", (1,)), TensorSpec("w", (2,))),
        (TensorSpec("w", (0,)),),
        (TensorSpec("w", (-1, -1)),),
        (TensorSpec("w", (2**20, 2**20)),),
    ],
)
def test_invalid_specs_are_refused(tensors):
    refused(Reason.WRONG_SHAPE, VectorSpec, tensors)
