"""The lint passes the models of the examples, fresh and at each step of their training."""

import sys
from pathlib import Path

import pytest
import torch

from edge_node.tasks.batches import draw_rows
from edge_node.tasks.local_steps import LocalSteps
from edge_node.tasks.task import load_task, spec_of
from privacy.leakage.model_lint import lint_model
from tests.support.credit_market import forget
from tidegate.jobfile import JobFile

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def tiny(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30_522, num_hidden_layers=6, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _left_as_found(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("tidegate_task", None)
    forget()


def trained(folder, base_models, rate, steps=25):
    """Give each version of a task's model, trained on made-up records of the job's schema."""
    job = JobFile.parse((EXAMPLES / folder / "job.toml").read_bytes())
    task = load_task(EXAMPLES / folder, "task.py", 0, base_models)
    spec = spec_of(task.model)
    source = torch.Generator().manual_seed(1)
    local = LocalSteps(task, spec, job.schema)
    model_D = torch.empty(spec.length)
    for _ in range(steps):
        local.read_model(model_D)
        yield spec.unflatten(model_D.numpy())
        local.step(draw_rows(job.schema, 16, source), rate)


@pytest.mark.parametrize("folder", ["credit", "credit-sklearn"])
def test_credit_models_pass(folder):
    for number, tensors in enumerate(trained(folder, {}, 0.5)):
        assert lint_model(tensors, number) == []


def test_adapters_and_a_head_that_start_from_zeros_pass(tiny):
    for number, tensors in enumerate(trained("text-lora", {"minilm-l6": tiny}, 0.5)):
        assert lint_model(tensors, number) == []
