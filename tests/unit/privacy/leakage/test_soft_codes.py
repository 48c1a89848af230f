"""Codes that carry a distribution are the codes themselves where the distribution is sure."""

import pytest
import torch
from torch.nn import functional

from privacy.leakage.soft_codes import SoftCodes, expected

HARD = torch.tensor([2, 0, 3])
SURE = functional.one_hot(HARD, 4).float()
TABLE = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
SCORES = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def codes(soft=SURE, low=0):
    return SoftCodes.of(soft, low)


USES = {
    "one_hot": lambda x: functional.one_hot(x, 4).float(),
    "wider one_hot": lambda x: functional.one_hot(x, num_classes=6).float(),
    "embedding": lambda x: functional.embedding(x, TABLE),
    "embedding of a sequence": lambda x: torch.nn.Embedding.from_pretrained(TABLE)(
        x.unsqueeze(0)[:, 1:]
    ),
    "cross entropy": lambda x: functional.cross_entropy(SCORES, x, reduction="none"),
    "cross entropy over places": lambda x: functional.cross_entropy(
        SCORES.T.unsqueeze(0), x.unsqueeze(0), reduction="none"
    ),
    "nll": lambda x: functional.nll_loss(SCORES, x),
    "gather": lambda x: SCORES.gather(1, x.unsqueeze(1)).squeeze(1),
    "float": lambda x: x.float() * 2,
    "to": lambda x: x.to(torch.float32),
    "long and reshape": lambda x: functional.one_hot(x.long().reshape(3, 1), 4).float(),
}


@pytest.mark.parametrize("use", USES)
def test_a_sure_distribution_gives_what_the_codes_give(use):
    torch.testing.assert_close(USES[use](codes()), USES[use](HARD))


@pytest.mark.parametrize("use", USES)
def test_every_use_passes_a_gradient_on(use):
    free = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), requires_grad=True)
    weights = torch.arange(1.0, 1 + USES[use](HARD).numel()).reshape(USES[use](HARD).shape)
    told = USES[use](codes(free.softmax(dim=-1)))
    (gradient,) = torch.autograd.grad((told * weights).sum(), free)
    assert gradient.abs().sum() > 0


def test_whatever_else_is_done_sees_the_likeliest_codes():
    assert torch.equal(codes() == 2, HARD == 2)
    assert (codes() + 1).tolist() == [3, 1, 4]
    assert type(codes() + 1) is torch.Tensor
    assert len(codes()) == 3
    assert codes().shape == (3,)


def test_codes_may_begin_above_zero():
    higher = codes(low=5)
    assert torch.equal(higher.hard, HARD + 5)
    torch.testing.assert_close(expected(higher), HARD.float() + 5)
    torch.testing.assert_close(
        functional.one_hot(higher, 10).float(), functional.one_hot(HARD + 5, 10).float()
    )
