"""Two ranks in one sandbox give what one process gives, and fail and end together."""

import os
import signal
import socket
from itertools import chain

import numpy as np
import psutil
import pytest

from edge_node.trainer.frames import GRADIENTS, STEPS
from edge_node.trainer.ranks import Leader, Rank, RankFailedError
from edge_node.trainer.trainer import TrainerFailure
from privacy.errors import UsageError
from privacy.spec import TensorSpec, VectorSpec
from tests.support.trainer_apps import make_trainer, write_app
from tests.unit.edge_node.trainer.test_trainer import MODEL_D, gradients_of, rows_of, run
from tests.unit.tidegate.confine.test_sandbox import leave_out
from tidegate.confine.frames import encode, failure_frame

# Blocks to shard, a parameter that no record uses, and an odd number of everything.
NET = """
import os, time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5))
        self.head = nn.Linear(5, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.blocks(x))

def model():
    return Net()

def error(model, batch):
    x = torch.stack([batch["x0"], batch["x1"], batch["x2"]], dim=-1)
    return model(x).squeeze(-1) - batch["y"]

def loss(model, batch):
    return error(model, batch) ** 2

def metrics(model, batch):
    squares = error(model, batch) ** 2
    return torch.stack([squares.clamp(max=1.0), (batch["y"] > 0).to(squares.dtype)], dim=-1)

def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.05)
"""
SHAPES = {
    "blocks.0.weight": (5, 3), "blocks.0.bias": (5,), "blocks.2.weight": (5, 5),
    "blocks.2.bias": (5,), "head.weight": (1, 5), "head.bias": (1,),
    "unused.weight": (2, 2), "unused.bias": (2,),
}  # fmt: skip
SPEC = VectorSpec(tuple(TensorSpec(name, shape) for name, shape in SHAPES.items()))
START_D = np.random.default_rng(3).normal(size=SPEC.length).astype(np.float32)
BATCHES = [rows_of(n, seed=n) for n in (8, 5, 1, 2)]  # one with fewer rows than ranks


@pytest.fixture
def own_network():
    """Skip where no network namespace is to be had: ranks are refused there."""
    if not os.access("/proc/self/ns/user", os.R_OK):
        pytest.skip("no user namespaces on this machine")


async def trained(app, **limits):
    trainer = make_trainer(app, spec=SPEC, serves=STEPS, memory_mib=1500, **limits)
    first = await trainer.local_steps(START_D, BATCHES, 0.05)
    again = await trainer.local_steps(START_D, BATCHES[:2], 0.05)
    report = await trainer.start()
    assert report.network
    await trainer.stop()
    return *first, *again


@pytest.mark.usefixtures("own_network")
@pytest.mark.parametrize(
    ("parallel", "own_optimiser", "tolerance"),
    # Adam divides by the root of a mean square, so that it magnifies last bits where that is small.
    [("ddp", False, 1e-5), ("fsdp", True, 1e-3)],
)
def test_two_ranks_take_the_steps_of_one_process(tmp_path, parallel, own_optimiser, tolerance):
    app = write_app(tmp_path, task=NET)

    async def scenario():
        one = await trained(app, own_optimiser=own_optimiser)
        return one, await trained(app, own_optimiser=own_optimiser, processes=2, parallel=parallel)

    one, two = run(scenario())
    assert not np.allclose(one[0], START_D)
    for expected, got in zip(one, two, strict=True):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance / 10)


def test_records_shared_out_over_ranks_give_the_same_bits(tmp_path):
    app, rows = write_app(tmp_path), rows_of(70)

    async def scenario():
        results = []
        for processes in (1, 2):
            trainer = make_trainer(app, serves=GRADIENTS, physical_batch=32, processes=processes)
            gradients, metrics, sizes = await gradients_of(trainer, rows)
            assert sizes == [32, 32, 6]
            results.append(gradients.tobytes() + metrics.tobytes())
            await trainer.stop()
        return results

    one, two = run(scenario())
    assert one == two


FAULTS = """
    def loss(model, batch):
        code = int(batch["x0"].max())
        if code == 101:
            raise ValueError("row holds 31337")
        if code == 102:
            time.sleep(60)
        return error(model, batch) ** 2
"""


@pytest.mark.usefixtures("own_network")
def test_what_fails_on_one_rank_is_named_and_ends_all(tmp_path):
    app = write_app(tmp_path, FAULTS)
    expected = {101: "row holds 31337 (task.py, line ", 102: "5 s"}

    async def scenario():
        failures = {}
        trainer = make_trainer(app, serves=STEPS, processes=2, request_timeout_s=5.0)
        for code in expected:
            rows = rows_of(6)
            rows[5, 0] = code  # in the share of the second rank
            await trainer.start()
            pids = descendants(trainer.process_id)
            assert len(pids) == 2
            with pytest.raises(TrainerFailure) as caught:
                await trainer.local_steps(MODEL_D, [rows], 0.1)
            assert not any(map(psutil.pid_exists, pids))
            failures[code] = caught.value.detail
        await trainer.start()
        pids = descendants(trainer.process_id)
        os.kill(max(pids), signal.SIGKILL)  # as the kernel does when memory runs out
        with pytest.raises(TrainerFailure):
            await trainer.local_steps(MODEL_D, [rows_of(6)], 0.1)
        assert not any(map(psutil.pid_exists, pids))
        await trainer.stop()
        return failures

    failures = run(scenario())
    for code, detail in expected.items():
        assert detail in failures[code], code


def descendants(pid):
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def test_ranks_are_refused_where_they_would_talk_over_the_machines_own_network(
    tmp_path, monkeypatch
):
    leave_out(monkeypatch, "landlock")

    async def scenario():
        trainer = make_trainer(write_app(tmp_path), serves=STEPS, processes=2)
        with pytest.raises(UsageError, match="processes = 1"):
            await trainer.start()

    run(scenario())


def test_shares_cover_every_row_once():
    for count in (1, 2, 3, 7):
        for length in (0, 1, 5, 64):
            rows = list(range(length))
            shares = [rows[Rank(k, count, None).share(length)] for k in range(count)]
            assert list(chain(*shares)) == rows
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_first_rank_passes_frames_on_and_answers_when_all_have():
    daemon, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    leader = Leader(ours, [end for end, _ in pairs])
    daemon.send(b"{}")
    assert leader.recv(100) == b"{}"
    for _, rank in pairs:
        assert rank.recv(100) == b"{}"
        rank.send(b'{"done":true}')
    leader.sendall(b'{"done":true}')
    assert daemon.recv(100) == b'{"done":true}'

    pairs[1][1].send(encode(failure_frame("app", "it broke")))
    pairs[0][1].send(b'{"done":true}')
    with pytest.raises(RankFailedError) as caught:
        leader.sendall(b'{"done":true}')
    assert caught.value.frame["detail"] == "it broke"

    pairs[0][1].close()
    daemon.send(b"{}")
    with pytest.raises(RankFailedError, match="ended unexpectedly"):
        leader.recv(100)
    daemon.close()
    assert leader.recv(100) == b""  # nobody is told: the ranks end with this process
    for end in (ours, *(end for pair in pairs for end in pair)):
        end.close()
