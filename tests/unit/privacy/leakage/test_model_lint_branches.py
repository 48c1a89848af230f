"""Residual branches that begin as zeros: when the lint takes them for an imprint, and why."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from privacy.leakage.model_lint import Detector
from tests.unit.privacy.leakage.test_model_lint import (
    PIXELS,
    found,
    gradients_of,
    mlp,
    pictures,
    recovered,
)


class Branch(nn.Module):
    """A residual branch whose last layer begins as zeros."""

    def __init__(self, *, zero_bias):
        super().__init__()
        self.up, self.down = nn.Linear(PIXELS, PIXELS), nn.Linear(PIXELS, PIXELS)
        nn.init.zeros_(self.down.weight)
        if zero_bias:
            nn.init.zeros_(self.down.bias)

    def forward(self, inputs):
        return inputs + self.down(torch.relu(self.up(inputs)))


def stepped(*, zero_bias, steps=1):
    torch.manual_seed(0)
    model = nn.Sequential(Branch(zero_bias=zero_bias), nn.ReLU(), nn.Linear(PIXELS, 1))
    inputs = pictures(64, seed=1)
    labels = (inputs.mean(1) > 0.75).float()
    stepper = torch.optim.Adam(model.parameters(), 3e-4)
    for _ in range(steps):
        stepper.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(inputs).squeeze(-1), labels)
        loss.backward()
        stepper.step()
    return model


def test_an_honest_branch_from_zeros_beside_drawn_offsets_has_an_imprints_weights():
    """A false alarm with a ground: in another place, under a hostile head, these weights leak."""
    honest = stepped(zero_bias=False)
    assert found(honest) == [(Detector.IMPRINT, "0.down.weight")]
    model, inputs = mlp(PIXELS), pictures(16, seed=3)
    with torch.no_grad():
        model[0].weight.copy_(honest[0].down.weight)
        model[0].bias.copy_(honest[0].down.bias)
        model[2].weight.copy_(torch.randn(10, 1).repeat(1, PIXELS) * 0.01)
    rows, offsets = model[0].weight.detach(), model[0].bias.detach()
    slopes = rows @ torch.linalg.svd(rows)[2][0]
    weights, biases, *_ = gradients_of(model, inputs, torch.arange(16) % 10)
    got = 0
    for side in (slopes > 0, slopes < 0):
        order = (-offsets / slopes)[side].argsort()
        steps, amounts = weights[side][order].diff(dim=0), biases[side][order].diff()
        some = amounts.abs() > 1e-5 * amounts.abs().max()
        got = max(got, recovered(steps[some] / amounts[some, None], inputs))
    assert got >= 5


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_the_same_branch_whose_bias_begins_as_zeros_too_passes(steps):
    assert found(stepped(zero_bias=True, steps=steps)) == []
