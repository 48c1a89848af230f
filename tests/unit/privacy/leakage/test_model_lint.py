"""The lint finds models made to leak, mounted for real, and passes those that were not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from privacy.errors import PeerError, Reason
from privacy.leakage.model_lint import Detector, check_model, lint_model

SEED = 5
SIDE = 16
PIXELS = SIDE * SIDE


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensors_of(model):
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def found(model, seed=SEED):
    tensors = model if isinstance(model, dict) else tensors_of(model)
    return [(each.detector, each.tensor) for each in lint_model(tensors, seed)]


def pictures(count, seed=0):
    """Draw smooth pictures, whose brightness differs from one to the next."""
    source = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 4, 4, generator=source)
    coarse = (coarse - 0.5) * 0.5 + torch.rand(count, 1, 1, 1, generator=source)
    return functional.interpolate(coarse, SIDE, mode="bilinear").reshape(count, PIXELS)


def mlp(units=128, classes=10, width=PIXELS):
    return nn.Sequential(nn.Linear(width, units), nn.ReLU(), nn.Linear(units, classes))


def imprint(units=128, jitter=0.0, seed=0):
    """Mount Robbing the Fed: brightness in each row, its quantiles as thresholds."""
    torch.manual_seed(seed)
    model = mlp(units)
    brightness = pictures(2000, seed=9).mean(1)
    levels = torch.quantile(brightness, (torch.arange(units) + 0.5) / units)
    with torch.no_grad():
        model[0].weight.fill_(1 / PIXELS)
        model[0].weight.add_(jitter / PIXELS * torch.randn(units, PIXELS))
        model[0].bias.copy_(-levels)
        model[2].weight.copy_(torch.randn(10, 1).repeat(1, units) * 0.01)
    return model


def trap(units=256, shrink=0.95, seed=0):
    """Mount trap weights: half of a row negative, the other half the same numbers, smaller."""
    torch.manual_seed(seed)
    model = mlp(units)
    with torch.no_grad():
        for row in model[0].weight:
            places = torch.randperm(PIXELS)
            values = torch.randn(PIXELS // 2).abs() * 0.1
            row[places[: PIXELS // 2]] = -values
            row[places[PIXELS // 2 :]] = shrink * values[torch.randperm(PIXELS // 2)]
        model[0].bias.zero_()
    return model


def gradients_of(model, inputs, labels):
    loss = functional.cross_entropy(model(inputs), labels)
    return torch.autograd.grad(loss, list(model.parameters()))


def recovered(candidates, inputs):
    """Count the inputs that one of the candidates is, to half a percent of grey."""
    if not len(candidates):
        return 0
    errors = torch.cdist(inputs, candidates, p=float("inf"))
    return int((errors.min(1).values < 5e-3).sum())


# --- what must be found ---------------------------------------------------------------------------


def test_an_imprint_model_gives_records_away_and_is_found():
    model, inputs = imprint(512), pictures(16, seed=3)
    weights, offsets, *_ = gradients_of(model, inputs, torch.arange(16) % 10)
    steps, amounts = weights[:-1] - weights[1:], offsets[:-1] - offsets[1:]
    some = amounts.abs() > 1e-5 * amounts.abs().max()
    assert recovered(steps[some] / amounts[some, None], inputs) >= 12
    assert found(model) == [(Detector.IMPRINT, "0.weight")]


@pytest.mark.parametrize("jitter", [0.03, 0.1, 0.3])
def test_an_imprint_behind_noise_is_found(jitter):
    assert found(imprint(jitter=jitter)) == [(Detector.IMPRINT, "0.weight")]


def test_an_imprint_of_scaled_turned_and_shuffled_rows_is_found():
    model = imprint()
    source = torch.Generator().manual_seed(1)
    scale = torch.exp(torch.randn(128, generator=source)) * torch.tensor([1.0, -1.0]).repeat(64)
    with torch.no_grad():
        model[0].weight.mul_(scale[:, None])
        model[0].bias.mul_(scale)
        order = torch.randperm(128, generator=source)
        model[0].weight.copy_(model[0].weight[order])
        model[0].bias.copy_(model[0].bias[order])
    assert found(model) == [(Detector.IMPRINT, "0.weight")]


def test_an_imprint_of_one_pixel_is_found():
    model = imprint()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[:, 77] = 1.0
    assert found(model) == [(Detector.IMPRINT, "0.weight")]


def test_an_imprint_with_units_in_the_last_dimension_is_found():
    tensors = tensors_of(imprint())
    named = {str(number): tensor for number, tensor in enumerate(tensors.values())}
    named["0"], named["2"] = np.ascontiguousarray(named["0"].T), np.ascontiguousarray(named["2"].T)
    assert found(named) == [(Detector.IMPRINT, "0")]


@pytest.mark.parametrize("module", ["", "body."])
@pytest.mark.parametrize("order", [("b", "w"), ("w", "scale", "b"), ("w", "b")])
def test_an_imprint_is_found_whatever_its_offsets_are_called_and_wherever_they_stand(module, order):
    weights, offsets, *rest = tensors_of(imprint()).values()
    named = {"w": weights, "b": offsets, "scale": np.ones(7, np.float32)}
    tensors = {f"{module}{name}": named[name] for name in order}
    tensors |= dict(zip(("head.weight", "head.bias"), rest, strict=True))
    assert found(tensors) == [(Detector.IMPRINT, f"{module}w")]


def test_an_imprint_that_is_declared_behind_the_layer_it_feeds_is_found():
    tensors = tensors_of(imprint())
    behind = {name: tensors[name] for name in ("2.weight", "2.bias", "0.weight", "0.bias")}
    assert found(behind) == [(Detector.IMPRINT, "0.weight")]


def test_a_convolution_that_imprints_is_found():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.Conv2d(64, 8, 3))
    with torch.no_grad():
        model[0].weight.fill_(1 / 75)
        model[0].bias.copy_(-torch.linspace(0.2, 0.8, 64))
    assert found(model) == [(Detector.IMPRINT, "0.weight")]


def test_copies_scattered_in_a_trained_layer_are_found():
    torch.manual_seed(0)
    model = mlp(256)
    with torch.no_grad():
        places = torch.randperm(256)
        model[0].weight[places[:12]] = model[0].weight[places[12:24]] * 1.5
    assert found(model) == [(Detector.DUPLICATES, "0.weight")]


def test_trap_weights_give_records_away_and_are_found():
    model, inputs = trap(1024), pictures(8, seed=4)
    active = (model[0](inputs) > 0).sum(0)
    alone = (active == 1).nonzero().flatten()
    weights, offsets, *_ = gradients_of(model, inputs, torch.arange(8))
    alone = alone[offsets[alone].abs() > 1e-9]
    assert recovered(weights[alone] / offsets[alone, None], inputs) >= 3
    assert found(model) == [(Detector.TRAP, "0.weight")]


@pytest.mark.parametrize("shrink", [0.8, 0.9, 0.99])
def test_traps_of_any_usual_strength_are_found(shrink):
    assert found(trap(shrink=shrink)) == [(Detector.TRAP, "0.weight")]


def test_an_output_layer_that_sorts_records_into_classes_is_found():
    steps = np.linspace(0.2, 0.8, 64)
    slopes = 5_000.0 * (1 + np.arange(64))
    rows = np.outer(slopes, np.full(PIXELS, 1 / PIXELS)).astype(np.float32)
    offsets = -np.cumsum(5_000.0 * steps).astype(np.float32)
    assert found({"weight": rows, "bias": offsets}) == [(Detector.IMPRINT, "weight")]


def test_behind_a_layer_that_passes_records_on_few_rows_are_enough():
    model = imprint(8, jitter=0.05)
    assert found(model) == []
    passing = nn.Sequential(nn.Conv2d(9, 9, 1), nn.Flatten(), *model)
    with torch.no_grad():
        nn.init.dirac_(passing[0].weight)
    assert found(passing) == [(Detector.IMPRINT, "2.weight")]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e7, 1e30])
@pytest.mark.parametrize("place", ["0.weight", "0.bias"])
def test_what_is_out_of_all_proportion_is_found(value, place):
    tensors = tensors_of(mlp())
    tensors[place].reshape(-1)[3] = value if place.endswith("weight") else value * 1e3
    assert found(tensors) == [(Detector.SCALE, place)]


@given(seed=st.integers(0, 2**128 - 1))
@settings(max_examples=30, deadline=None)
def test_no_seed_hides_an_imprint_or_accuses_a_fresh_model(seed):
    assert found(IMPRINT, seed) == [(Detector.IMPRINT, "0.weight")]
    assert found(FRESH, seed) == []


IMPRINT = tensors_of(imprint(64, jitter=0.1))
FRESH = tensors_of(mlp(64))


def test_the_refusal_names_rule_and_tensor_and_the_site_may_consent():
    tensors = tensors_of(imprint())
    with pytest.raises(PeerError, match=r"'0.weight'.*one direction.*\[imprint\]") as caught:
        check_model(tensors, SEED)
    assert caught.value.reason is Reason.SUSPECT_MODEL
    check_model(tensors, SEED, (Detector.IMPRINT,))
    tensors["2.bias"][0] = np.inf
    with pytest.raises(PeerError, match="scale"):
        check_model(tensors, SEED, (Detector.IMPRINT,))


# --- what it does not see: a fence is no wall (docs/threat-model.md) -----------------------------


def noisy_rows(model, inputs):
    """Rows that are no longer along one direction, and part records all the same."""
    with torch.no_grad():
        model[0].weight.add_(torch.randn(512, PIXELS) / PIXELS)


def rows_apart_where_inputs_are_dark(model, inputs):
    inputs[:, :64] = 0
    brightness = pictures(2000, seed=9)[:, 64:].sum(1) / PIXELS
    levels = torch.quantile(brightness, (torch.arange(512) + 0.5) / 512)
    with torch.no_grad():
        model[0].weight[:, :64] = torch.randn(512, 64)
        model[0].bias.copy_(-levels)


@pytest.mark.parametrize("hide", [noisy_rows, rows_apart_where_inputs_are_dark])
def test_an_imprint_of_somebody_who_knows_the_thresholds_is_not_seen(hide):
    model, inputs = imprint(512), pictures(16, seed=3)
    hide(model, inputs)
    weights, offsets, *_ = gradients_of(model, inputs, torch.arange(16) % 10)
    steps, amounts = weights[:-1] - weights[1:], offsets[:-1] - offsets[1:]
    some = amounts.abs() > 1e-5 * amounts.abs().max()
    assert recovered(steps[some] / amounts[some, None], inputs) >= 12
    assert found(model) == []


def test_thresholds_in_the_weights_of_a_constant_input_are_not_seen():
    model, inputs = imprint(512), pictures(16, seed=3)
    inputs[:, 0] = 1.0
    with torch.no_grad():
        model[0].weight[:, 0] = model[0].bias
        model[0].bias.zero_()
    weights, *_ = gradients_of(model, inputs, torch.arange(16) % 10)
    steps = weights[:-1] - weights[1:]
    some = steps[:, 0].abs() > 1e-5 * steps[:, 0].abs().max()
    assert recovered(steps[some] / steps[some, :1], inputs) >= 12
    assert found(model) == []


# --- what must pass -------------------------------------------------------------------------------

_KINDS = {
    "wide mlp": lambda: mlp(512, 100),
    "one unit": lambda: mlp(1, 2),
    "two inputs": lambda: mlp(256, 2, width=2),
    "narrow": lambda: mlp(512, 3, width=8),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3, groups=64)),
    "one channel": lambda: nn.Sequential(nn.Conv2d(1, 128, 3), nn.Conv2d(128, 128, 1)),
    "lstm": lambda: nn.LSTM(32, 64, num_layers=2),
    "transformer": lambda: nn.TransformerEncoderLayer(64, 4, 256),
    "embedding": lambda: nn.Embedding(500, 64, padding_idx=0),
    "norms": lambda: nn.Sequential(nn.LayerNorm(64), nn.GroupNorm(4, 64), nn.Linear(64, 64)),
    "deconvolution": lambda: nn.ConvTranspose2d(16, 32, 3),
}
_STARTS = {
    "as torch does": lambda p: None,
    "normal": lambda p: nn.init.normal_(p, std=0.02) if p.ndim > 1 else nn.init.zeros_(p),
    "orthogonal": lambda p: nn.init.orthogonal_(p) if p.ndim > 1 else nn.init.zeros_(p),
    "kaiming": lambda p: nn.init.kaiming_normal_(p) if p.ndim > 1 else nn.init.zeros_(p),
    "zeros": nn.init.zeros_,
    "ones": nn.init.ones_,
    "sparse": lambda p: nn.init.sparse_(p, 0.5) if p.ndim == 2 else None,
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("start", _STARTS)
def test_fresh_models_pass(kind, start):
    for seed in range(4):
        torch.manual_seed(seed)
        model = _KINDS[kind]()
        for parameter in model.parameters():
            _STARTS[start](parameter)
        assert found(model, seed) == []


def test_an_identity_passes_by_itself():
    layer = nn.Linear(64, 64)
    nn.init.eye_(layer.weight)
    assert found(nn.Sequential(layer, nn.ReLU(), nn.Linear(64, 2))) == []


def test_a_hadamard_matrix_passes():
    rows = np.array([[1.0]], np.float32)
    while len(rows) < 128:
        rows = np.block([[rows, rows], [rows, -rows]])
    assert found({"w": rows, "b": np.zeros(128, np.float32), "v": rows[:5] * 0.1}) == []


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("mean", [0.0, 1.0, 10.0])
def test_models_pass_at_each_step_of_their_training(mean, optimiser):
    """Few classes have records, and inputs have a large common part: rows grow along it."""
    torch.manual_seed(0)
    centres = torch.randn(64, 96)
    labels = (64 * torch.rand(600) ** 4).long()
    inputs = centres[labels] + 0.5 * torch.randn(600, 96) + mean
    for make in (lambda: mlp(128, 64, 96), lambda: nn.Linear(96, 64), lambda: head(96, 64)):
        model = make()
        rate = 0.1 / (1 + mean**2) if optimiser == "sgd" else 3e-3
        kind = torch.optim.SGD if optimiser == "sgd" else torch.optim.Adam
        stepper = kind(model.parameters(), rate)
        for step in range(40):
            drawn = torch.randint(0, 600, (4 if step % 2 else 64,))
            stepper.zero_grad()
            functional.cross_entropy(model(inputs[drawn]), labels[drawn]).backward()
            stepper.step()
            assert found(model, step) == [], f"step {step}"


def head(width, classes, *, zero_bias=False):
    layer = nn.Linear(width, classes)
    nn.init.zeros_(layer.weight)
    if zero_bias:
        nn.init.zeros_(layer.bias)
    return layer


def test_a_fresh_model_passes_after_a_round_of_noise_alone():
    torch.manual_seed(0)
    model = mlp(128)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 10.0)
    assert found(model) == []


def test_the_same_gradient_in_each_coordinate_passes():
    model = mlp(128)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(-0.01)
    assert found(model) == []


def test_adapters_pass_fresh_and_after_a_step_on_a_single_record():
    torch.manual_seed(0)
    first = torch.randn(8, 384) * 0.05
    record = torch.randn(384)
    second = -0.1 * torch.outer(torch.randn(384), first @ record)
    for b in (torch.zeros(384, 8), second):
        assert found({"q.lora_A.weight": first.numpy(), "q.lora_B.weight": b.numpy()}) == []


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW])
def test_adapters_before_norms_that_train_too_pass_at_each_step(optimiser):
    """An adapter's rows lie along one direction at first, and a norm's vector comes next."""
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(Adapted(64), nn.Linear(64, 2))
        inputs = torch.randn(256, 64) + 2 * torch.randn(64)
        labels = (inputs[:, 0] > inputs[:, 0].mean()).long()
        stepper = optimiser(model.parameters(), 1e-2)
        for step in range(10):
            drawn = torch.randint(0, 256, (16,))
            stepper.zero_grad()
            functional.cross_entropy(model(inputs[drawn]), labels[drawn]).backward()
            stepper.step()
            assert found(model, step) == [], f"step {step}"


class Adapted(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lora_A = nn.Linear(width, 8, bias=False)
        self.lora_B = nn.Linear(8, width, bias=False)
        self.norm = nn.LayerNorm(width)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, inputs):
        return self.norm(inputs + torch.relu(inputs + self.lora_B(self.lora_A(inputs))))


def test_an_intercept_may_be_an_amount_of_money():
    assert found({"weight": np.ones((1, 9), np.float32), "bias": np.float32([3e6])}) == []
