"""The memory and the frames between the daemon and its trainer, the trainer being hostile."""

import os

import numpy as np
import pytest

from edge_node.trainer.frames import read_report, report_frame
from edge_node.trainer.shared_memory import SharedLayout
from privacy.errors import PeerError, Reason
from tidegate.confine.frames import MAX_FRAME_BYTES, decode, encode
from tidegate.confine.sandbox import SandboxReport

LAYOUT = SharedLayout(model_length=7, physical_batch=3, row_width=2, metrics_length=5)


@pytest.fixture
def descriptor():
    number = LAYOUT.create()
    yield number
    os.close(number)


def test_both_sides_see_the_same_arrays_and_no_two_overlap(descriptor):
    ours, theirs = LAYOUT.attach(descriptor), LAYOUT.attach(descriptor)

    def arrays(side):
        slots = [(s.rows_PW, s.gradients_PD, s.metrics_PM) for s in side.slots]
        return [side.model_D, *slots[0], *slots[1]]

    for number, array in enumerate(arrays(ours)):
        array[...] = number
    for number, array in enumerate(arrays(theirs)):
        assert (array == number).all()
        assert array.ctypes.data % 64 == 0
    assert [a.shape for a in arrays(ours)[:4]] == [(7,), (3, 2), (3, 7), (3, 5)]
    assert all(a.dtype == np.float32 for a in arrays(ours))


@pytest.mark.parametrize("size", [0, LAYOUT.n_bytes - 1, LAYOUT.n_bytes + 1])
def test_the_size_is_sealed(descriptor, size):
    # A trainer that shrank the file would crash the daemon at its next read.
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, size)


def test_no_metrics_and_no_columns_take_no_room():
    layout = SharedLayout(1, 1, 0, 0)
    number = layout.create()
    assert layout.attach(number).slots[1].metrics_PM.shape == (1, 0)
    os.close(number)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"7", b"\xff", b"[" * 50_000])
def test_frames_that_make_no_sense_are_refused(raw):
    with pytest.raises(PeerError) as caught:
        decode(raw)
    assert caught.value.reason is Reason.MALFORMED


def test_a_frame_is_bounded():
    with pytest.raises(PeerError) as caught:
        encode({"x": "y" * MAX_FRAME_BYTES})
    assert caught.value.reason is Reason.TOO_LARGE


def test_a_report_survives_the_way_and_only_true_is_true():
    report = SandboxReport(
        network=True, filesystem=False, process=True, memory=False, syscalls=True, notes=("why",)
    )
    assert read_report(decode(encode(report_frame(report, "cpu")))) == report
    forged = {"ready": {"network": "yes", "filesystem": 1, "notes": []}}
    assert read_report(forged).missing == ("network", "filesystem", "process", "memory", "syscalls")
    for frame in ({}, {"ready": 1}, {"ready": {"notes": 3}}):
        with pytest.raises(PeerError):
            read_report(frame)
