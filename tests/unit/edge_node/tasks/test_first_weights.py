"""A layer that sites' lint will take for an imprint after a step is named at submit."""

import pytest
from torch import nn

from edge_node.tasks.first_weights import zero_weight_notes


def branch(units, *, zero_weight=True, zero_bias=False, trained=True):
    layer = nn.Linear(16, units)
    if zero_weight:
        nn.init.zeros_(layer.weight)
    if zero_bias:
        nn.init.zeros_(layer.bias)
    layer.weight.requires_grad_(trained)
    return nn.Sequential(nn.Linear(16, 16), nn.ModuleDict({"down": layer}))


def test_weights_from_zeros_beside_a_drawn_bias_are_named_with_the_mend():
    (note,) = zero_weight_notes(branch(16))
    assert "'1.down'" in note
    assert "let the bias begin as zeros too" in note


@pytest.mark.parametrize(
    "model",
    [
        branch(16, zero_bias=True),
        branch(16, zero_weight=False),
        branch(16, trained=False),
        branch(4),
        nn.Sequential(nn.Linear(8, 16, bias=False), nn.LayerNorm(16), nn.Embedding(9, 16)),
        nn.LSTM(8, 16),
    ],
)
def test_other_models_get_no_note(model):
    assert zero_weight_notes(model) == []
