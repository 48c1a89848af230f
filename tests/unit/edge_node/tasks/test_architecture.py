"""An architecture's digest: values do not matter, everything else does."""

import asyncio

import pytest
import torch
from torch import nn

from edge_node.offers import _check_named
from edge_node.tasks.architecture import architecture_of
from privacy.errors import PeerError, Reason
from tests.support.live_aggregator import job_toml
from tests.support.trainer_apps import make_trainer, write_app
from tidegate.jobfile import JobFile


class Own(nn.Linear):
    """A layer of the same shapes that could compute anything."""


def frozen():
    model = base()
    model[0].bias.requires_grad_(False)
    return model


def buffered():
    model = base()
    model.register_buffer("scale", torch.ones(3))
    return model


def base(activation=nn.ReLU, first=nn.Linear):
    return nn.Sequential(first(4, 3), activation(), nn.Linear(3, 4))


def test_values_do_not_matter_and_everything_else_does():
    torch.manual_seed(1)
    one = architecture_of(base())
    torch.manual_seed(2)
    assert architecture_of(base()) == one
    others = [
        base(activation=nn.Tanh),
        base(first=Own),
        frozen(),
        buffered(),
        base().double(),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4), nn.ReLU()),
        nn.ModuleDict({"0": nn.Linear(4, 3), "1": nn.ReLU(), "2": nn.Linear(3, 4)}),
    ]
    assert len({one, *map(architecture_of, others)}) == len(others) + 1


def test_a_trainer_starts_with_the_architecture_that_the_job_names_and_no_other(tmp_path):
    named = architecture_of(nn.Linear(3, 1))
    app = write_app(tmp_path)

    async def scenario():
        trainer = make_trainer(app, architecture=named)
        await trainer.start()
        await trainer.stop()
        trainer = make_trainer(app, architecture="0" * 64)
        with pytest.raises(PeerError, match=f"sha256:{named}") as caught:
            await trainer.start()
        assert caught.value.reason is Reason.WRONG_DIGEST
        assert trainer.process_id is None
        await trainer.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("own", "offered", "reason"),
    [
        (None, "a" * 64, None),
        ('[task]\narchitecture = "' + "a" * 64 + '"', "a" * 64, None),
        ('[task]\narchitecture = "' + "a" * 64 + '"', "b" * 64, Reason.WRONG_DIGEST),
        ('[task]\narchitecture = "' + "a" * 64 + '"', "", Reason.WRONG_DIGEST),
        ("task = 3", "a" * 64, None),
        ("no toml", "a" * 64, Reason.MALFORMED),
    ],
)
def test_what_the_reviewed_app_itself_names_cannot_be_left_out_of_the_offer(
    tmp_path, own, offered, reason
):
    toml = job_toml().replace(b"[task]\n", f'[task]\narchitecture = "{offered}"\n'.encode())
    job = JobFile.parse(toml)
    assert job.task.architecture == offered
    if own is not None:
        (tmp_path / "job.toml").write_text(own)
    if reason is None:
        _check_named(tmp_path, job)
        return
    with pytest.raises(PeerError) as caught:
        _check_named(tmp_path, job)
    assert caught.value.reason is reason
