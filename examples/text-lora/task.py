"""Sort news wires into eight topics: a frozen MiniLM with LoRA adapters and a linear head.

A Tidegate task with a base model: the sites hold its weights already and job.toml names their
digest, so what travels and what is trained are the adapters and the head alone. A batch has the
columns of job.toml: ``tokens``, int64 of shape (B, LENGTH), zeros behind the text, and ``topic``,
int64 of shape (B,). Words are cut into tokens before the data comes here (split.py), and each
record is one wire: nothing is packed or normalised across records.

Shapes: B = records, L = tokens of a record, H = width of the base model, K = topics.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = Mapping[str, Tensor]

BASE = "minilm-l6"
TOPICS = ("earn", "acq", "crude", "trade", "money-fx", "interest", "ship", "grain")
LENGTH = 24
PADDING = 0
RANK = 8
ADAPTED_LAYERS = (4, 5)  # of six, from 0: fewer coordinates, so less noise in all of them
POOLED_NORM = 4.0

# What job.toml declares under [[metrics]].
LOSS_UPPER = 4.0


class TopicModel(nn.Module):
    """Map tokens to scores of topics: MiniLM with adapters, the mean over tokens, a head."""

    def __init__(self, folder: Path) -> None:
        """Load the frozen weights from a folder and put fresh adapters beside them."""
        super().__init__()
        from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - a second each to import
        from transformers import AutoModel  # noqa: PLC0415

        base = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        adapters = LoraConfig(
            r=RANK,
            lora_alpha=2 * RANK,
            lora_dropout=0.0,
            target_modules=["query", "value"],
            layers_to_transform=list(ADAPTED_LAYERS),
        )
        self.encoder = get_peft_model(base, adapters)
        self.head = nn.Linear(base.config.hidden_size, len(TOPICS))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Return scores of topics, shape (B, K)."""
        real_BL = tokens_BL != PADDING
        real_BL[:, 0] = True  # a text without a word still has a place to look at
        states = self.encoder(input_ids=tokens_BL, attention_mask=real_BL.long())
        weights_BL1 = real_BL.unsqueeze(-1).to(torch.float32)
        sums_BH = (states.last_hidden_state * weights_BL1).sum(dim=1)
        # Only the direction counts, as the base model was trained: no record is louder by length.
        scores: Tensor = self.head(POOLED_NORM * functional.normalize(sums_BH, dim=-1))
        return scores


def model(base_models: dict[str, Path]) -> nn.Module:
    """Make the model around the site's own copy of MiniLM."""
    return TopicModel(base_models[BASE]).eval()  # no dropout: gradients allow no random numbers


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross entropy of each record, shape (B,), in nats."""
    return functional.cross_entropy(model(batch["tokens"]), batch["topic"], reduction="none")


def metrics(model: nn.Module, batch: Batch) -> Tensor:
    """Return each record's metrics in the order of job.toml, shape (B, 2), each in 0..1."""
    scores_BK: Tensor = model(batch["tokens"])
    losses = functional.cross_entropy(scores_BK, batch["topic"], reduction="none")
    right = (scores_BK.argmax(dim=-1) == batch["topic"]).to(torch.float32)
    return torch.stack([(losses / LOSS_UPPER).clamp(0.0, 1.0), right], dim=-1)
