"""Small jobs for the leakage audit to attack: pictures, table rows and tokens, in any mode."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from privacy.compress import MapKind
from privacy.encodings import encoding_at
from privacy.leakage.fields import Field
from privacy.leakage.scene import Scene
from privacy.pipeline import Mode
from privacy.quantise import Rounding
from privacy.spec import TensorSpec, VectorSpec
from privacy.terms import CohortRules, PrivacyTerms

SIDE = 16
LABELS = 10
VOCABULARY, LENGTH, WIDTH = 500, 8, 64
NUMBERS, CATEGORIES = 6, (5, 8, 3, 10)


@dataclass(frozen=True)
class Privacy:
    """How a job's updates are protected."""

    mode: Mode = Mode.NONE
    z: float = 0.0
    sites: int = 4
    clip: float = 1.0
    steps: int = 1
    rate: float = 0.05
    map_kind: MapKind = MapKind.IDENTITY
    keep: float = 1.0
    rows: int = 0


OPEN = Privacy()


def noised(z, **others):
    """Protect records by a noise that one honest site adds alone: z is that of an update alone."""
    return Privacy(Mode.RECORD_DISTRIBUTED, z, **{"sites": 2, **others})


def spec_of(model):
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return VectorSpec(tuple(TensorSpec(name, tuple(p.shape)) for name, p in trained))


def plan_of(spec, privacy, expected=4.0):
    by_record = privacy.mode.by_record
    terms = PrivacyTerms(
        mode=privacy.mode,
        rounds=10,
        epsilon=0.0 if privacy.mode is Mode.NONE else 3.0,
        delta_dp=0.0 if privacy.mode is Mode.NONE else 1e-5,
        sampling_rate=0.05 if by_record else 1.0,
        clipping_norm=privacy.clip,
        metrics_norm=0.0,
        metrics_length=0,
        expected_batch_size=expected,
        max_records=10_000,
        rounding=Rounding.RECORD,
        noise_multiplier=privacy.z,
        map_kind=privacy.map_kind,
        keep=privacy.keep,
        signal_range=0.5,
        unit="user" if privacy.rows else "record",
        max_rows=privacy.rows,
        local_steps=privacy.steps,
        update_norm=8.0,
    )
    rules = CohortRules(1, privacy.sites, privacy.sites)
    return encoding_at(terms, spec, rules, bytes(32), privacy.z)


def scene_of(model, loss, fields, privacy, records, **others):
    spec = spec_of(model)
    rate = None if others.get("optimiser") else privacy.rate
    plan = plan_of(spec, privacy, float(records))
    return Scene(
        model, loss, fields, spec, plan, privacy.sites, records, privacy.steps, rate, **others
    )


class PictureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24 * (SIDE // 4) ** 2, LABELS),
        )

    def forward(self, pictures):
        return self.layers((pictures - 0.45) / 0.25)


PICTURE_FIELDS = (
    Field("image", "float32", (3, SIDE, SIDE), 0.0, 1.0),
    Field("label", "int64", (), levels=LABELS),
)


def picture_loss(model, batch):
    return functional.cross_entropy(model(batch["image"]), batch["label"], reduction="none")


def picture_job(privacy=OPEN, records=1, **others):
    torch.manual_seed(1)
    return scene_of(PictureNet(), picture_loss, PICTURE_FIELDS, privacy, records, **others)


class PictureMlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.first = nn.Linear(3 * SIDE * SIDE, hidden)
        self.last = nn.Linear(hidden, LABELS)

    def forward(self, pictures):
        return self.last(torch.relu(self.first(pictures.flatten(1))))


def picture_mlp_job(privacy=OPEN, records=8, hidden=512):
    torch.manual_seed(1)
    return scene_of(PictureMlp(hidden), picture_loss, PICTURE_FIELDS, privacy, records)


TABLE_FIELDS = (
    *(Field(f"n{i}", "float32", (), -1.7, 1.7) for i in range(NUMBERS)),
    *(Field(f"c{i}", "int64", (), levels=levels) for i, levels in enumerate(CATEGORIES)),
    Field("label", "int64", (), levels=2),
)


class TableNet(nn.Module):
    def __init__(self, activation=nn.ReLU):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(NUMBERS + sum(CATEGORIES), 64),
            activation(),
            nn.Linear(64, 64),
            activation(),
            nn.Linear(64, 2),
        )

    def forward(self, batch):
        numbers = torch.stack([batch[f"n{i}"] for i in range(NUMBERS)], dim=1)
        hot = [
            functional.one_hot(batch[f"c{i}"], levels).float()
            for i, levels in enumerate(CATEGORIES)
        ]
        return self.layers(torch.cat([numbers, *hot], dim=1))


def table_loss(model, batch):
    return functional.cross_entropy(model(batch), batch["label"], reduction="none")


def table_job(privacy=OPEN, records=4, **others):
    torch.manual_seed(0)
    return scene_of(TableNet(), table_loss, TABLE_FIELDS, privacy, records, **others)


class TokenNet(nn.Module):
    """One block of a decoder; its embeddings are frozen, and with ``rank`` all but an adapter."""

    def __init__(self, rank=0, *, train_embeddings=False):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
            table.weight.requires_grad_(train_embeddings)
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.down = self.up = None
        if rank:
            for parameter in self.parameters():
                parameter.requires_grad_(False)
            self.down = nn.Linear(WIDTH, rank, bias=False)
            self.up = nn.Linear(rank, WIDTH, bias=False)
            nn.init.zeros_(self.up.weight)

    def forward(self, tokens):
        states = self.words(tokens) + self.places.weight
        seen = self.norm(states)
        query, key, value = self.query(seen), self.key(seen), self.value(seen)
        if self.down is not None:
            query = query + self.up(self.down(seen))
        mixed = functional.scaled_dot_product_attention(
            query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), is_causal=True
        )
        return self.head(states + self.out(mixed.squeeze(1)))


TOKEN_FIELDS = (Field("tokens", "int64", (LENGTH,), levels=VOCABULARY),)


def token_loss(model, batch):
    tokens = batch["tokens"]
    scores = model(tokens)[:, :-1].reshape(-1, VOCABULARY)
    losses = functional.cross_entropy(scores, tokens[:, 1:].reshape(-1), reduction="none")
    return losses.reshape(len(tokens), -1).mean(dim=1)


def token_job(privacy=OPEN, records=1, rank=0, *, train_embeddings=False):
    torch.manual_seed(0)
    model = TokenNet(rank, train_embeddings=train_embeddings)
    return scene_of(model, token_loss, TOKEN_FIELDS, privacy, records)
