"""Both engines give what a loop over single records gives; the traps of hooks are named."""

import pytest
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from edge_node.tasks.flat_model import FlatModel
from edge_node.tasks.gradient_engines import (
    HOOKED,
    MAPPED,
    HookedGradients,
    MappedGradients,
    choose_engine,
)
from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.task import Task, TaskError, spec_of
from tidegate.schema import Column, Schema

B, LENGTH = 5, 6
TOKENS = Schema((Column("x", "int64", (LENGTH,), 0, 19), Column("y")))
PLAIN = Schema((Column("x", shape=(8,)), Column("y")))
IMAGES = Schema((Column("x", shape=(2, 8, 8)), Column("y")))


def squares(model, batch):
    return (model(batch["x"]).reshape(len(batch["y"])) - batch["y"]) ** 2


class Reader(nn.Module):
    """An embedding, a layer over the sequence, a head on the last place."""

    def __init__(self, layer, call=lambda layer, x: layer(x)):
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(20, 8), layer, nn.Linear(8, 1)
        self._call = call

    def forward(self, tokens):
        return self.head(self._call(self.layer, self.embedding(tokens))[:, -1])


class Tied(nn.Module):
    """An output layer that is the embedding's twin."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(self.embedding(tokens).tanh().mean(1)).logsumexp(1)


class Scale(nn.Module):
    """A layer that Opacus has no rule for."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([0.5, 2.0, 1.0, -1.0] * 2))

    def forward(self, x):
        return torch.sin(x * self.gain)


class Used(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(8, 1), nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


def lora():
    from peft import LoraConfig, get_peft_model

    base = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["0", "2"], init_lora_weights=False)
    return get_peft_model(base, config)


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1)), PLAIN),
    "conv and group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.GroupNorm(4, 8), nn.Tanh(), nn.Flatten(),
            nn.Linear(128, 1),
        ),
        IMAGES,
    ),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 1)), PLAIN),
    "embedding": (lambda: Reader(nn.Linear(8, 8)), TOKENS),
    "lora": (lora, PLAIN),
    "lstm of opacus": (
        lambda: Reader(DPLSTM(8, 8, batch_first=True), lambda m, x: m(x)[0]), TOKENS,
    ),
    "attention of opacus": (
        lambda: Reader(DPMultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x)[0]),
        TOKENS,
    ),
    "tied weights": (Tied, TOKENS),
    "own layer": (lambda: nn.Sequential(nn.Linear(8, 8), Scale(), nn.Linear(8, 1)), PLAIN),
    "eval mode": (lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 1)).eval(), PLAIN),
    "unused layer": (Used, PLAIN),
}  # fmt: skip


def setting(make, schema, loss=squares):
    torch.manual_seed(11)
    task = Task(make(), loss)
    flat = FlatModel(task.model, spec_of(task.model))
    source = torch.Generator().manual_seed(3)
    rows = torch.randn((B, schema.width), generator=source)
    for column in schema.columns:
        if column.dtype == "int64":
            place = schema.places[column.name]
            rows[:, place] = torch.randint(0, 20, rows[:, place].shape, generator=source).float()
    return task, flat, task.batch(rows, schema)


def loop(task, flat, batch):
    records = []
    for number in range(B):
        one = {name: values[number : number + 1] for name, values in batch.items()}
        parts = torch.autograd.grad(
            task.loss(task.model, one).sum(), flat.parameters, allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip
        records.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(records)


@pytest.mark.parametrize("engine", [MappedGradients, HookedGradients])
@pytest.mark.parametrize("name", MODELS)
def test_both_engines_equal_a_loop_over_single_records(name, engine):
    task, flat, batch = setting(*MODELS[name])
    expected = loop(task, flat, batch)
    engine = engine(task, flat)
    for _ in range(2):  # nothing is left over from one batch to the next
        found = torch.cat(engine(batch, B), dim=1)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    with engine.aside():
        torch.testing.assert_close(loop(task, flat, batch), expected, rtol=0, atol=0)
    torch.testing.assert_close(torch.cat(engine(batch, B), dim=1), expected, rtol=1e-6, atol=1e-6)


def test_the_model_keeps_its_names_under_the_hooks():
    """Opacus' wrapper renames parameters, and peft then finds none of its own."""
    from peft import get_peft_model_state_dict

    task, flat, batch = setting(lora, PLAIN)
    before = list(get_peft_model_state_dict(task.model))
    HookedGradients(task, flat)(batch, B)
    assert list(get_peft_model_state_dict(task.model)) == before
    assert len(before) == 4
    assert [tensor.name for tensor in spec_of(task.model).tensors] == flat.names


def looks_at_values(model, batch):
    """A loss with control flow on values, as in Hugging Face's masks; right for each record."""
    if bool((batch["x"] >= 0).all()):
        return squares(model, batch)
    return squares(model, batch) + 0.0


def test_torch_func_is_taken_where_it_can_and_opacus_where_it_cannot():
    make, schema = MODELS["embedding"]
    for loss, name in ((squares, MAPPED), (looks_at_values, HOOKED)):
        task, flat, batch = setting(make, schema, loss)
        engine = choose_engine(task, flat, batch, B)
        assert engine.name == name
        with engine.aside():
            expected = loop(task, flat, batch)
        torch.testing.assert_close(torch.cat(engine(batch, B), 1), expected)


@pytest.mark.parametrize(
    ("layer", "call", "twin"),
    [
        (lambda: nn.LSTM(8, 8, batch_first=True), lambda m, x: m(x)[0], "DPLSTM"),
        (lambda: nn.GRU(8, 8, batch_first=True), lambda m, x: m(x)[0], "DPGRU"),
        (lambda: nn.RNN(8, 8, batch_first=True), lambda m, x: m(x)[0], "DPRNN"),
        (lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x)[0],
         "DPMultiheadAttention"),
    ],
)  # fmt: skip
def test_layers_that_hooks_cannot_do_are_named_with_their_twin(layer, call, twin):
    task, flat, batch = setting(lambda: Reader(layer(), call), TOKENS, looks_at_values)
    with pytest.raises(TaskError, match=rf"torch.func: .*module 'layer'.*use opacus.layers.{twin}"):
        choose_engine(task, flat, batch, B)
    task, flat, batch = setting(lambda: Reader(layer(), call), TOKENS)
    if twin in {"DPGRU", "DPRNN"}:  # neither engine can
        with pytest.raises(TaskError, match=twin):
            choose_engine(task, flat, batch, B)
    else:
        assert choose_engine(task, flat, batch, B).name == MAPPED


class Positions(nn.Module):
    """Position embeddings as GPT-2 has them: one input for all records."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe, self.head = nn.Embedding(20, 8), nn.Embedding(9, 8), nn.Linear(8, 1)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1]).unsqueeze(0)
        return self.head((self.wte(tokens) + self.wpe(places)).tanh().mean(1))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(checkpoint(lambda x: self.first(x).tanh(), x, use_reentrant=False))


class Reached(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(functional.linear(x, self.inner.weight).tanh())


@pytest.mark.parametrize(
    ("make", "schema", "says"),
    [
        (Positions, TOKENS, r"'wpe.weight' does not see one input a record.*position_ids"),
        (Checkpointed, PLAIN, r"checkpoint"),
        (Reached, PLAIN, r"'inner.weight' is used where Opacus cannot see it"),
    ],
)
def test_the_traps_of_hooks_are_refused_by_name(make, schema, says):
    task, flat, batch = setting(make, schema, looks_at_values)
    with pytest.raises(TaskError, match=says):
        choose_engine(task, flat, batch, B)


def test_gpt2_positions_are_no_trap_for_torch_func():
    task, flat, batch = setting(Positions, TOKENS)
    engine = choose_engine(task, flat, batch, B)
    assert engine.name == MAPPED
    torch.testing.assert_close(torch.cat(engine(batch, B), 1), loop(task, flat, batch))


def test_gradient_checkpointing_is_refused_before_anything_runs():
    model = nn.Sequential(nn.Linear(8, 1))
    model[0].gradient_checkpointing = True
    task = Task(model, squares)
    with pytest.raises(TaskError, match=r"'0' .*gradient_checkpointing_disable"):
        RecordGradients(task, spec_of(model), PLAIN, 0)


def centred(model, batch):
    """A loss that mixes records, under control flow that keeps torch.func away."""
    values = looks_at_values(model, batch)
    return values / values.detach().mean()


def test_a_loss_that_mixes_records_is_found_under_the_hooks_too():
    task, _, _ = setting(*MODELS["embedding"], centred)
    engine = RecordGradients(task, spec_of(task.model), TOKENS, 0)
    assert engine.engine == HOOKED
    with pytest.raises(TaskError, match="does the loss mix records"):
        engine.check_loop()


def test_the_hooks_give_a_record_the_same_bits_in_any_slot():
    task, _, _ = setting(*MODELS["embedding"], looks_at_values)
    spec = spec_of(task.model)
    engine = RecordGradients(task, spec, TOKENS, 0)
    room = [(torch.empty(16, spec.length), torch.empty(16, 0)) for _ in range(2)]
    engine.check(*room)
