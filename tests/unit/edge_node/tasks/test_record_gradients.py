"""Per-record gradients: one record must not touch another's, and a task's mistakes are named."""

import numpy as np
import pytest
import torch
from torch import nn

from edge_node.tasks.local_steps import LocalSteps
from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.task import Task, TaskError, spec_of
from tidegate.schema import scalars

COLUMNS = ("a", "b", "y")
SCHEMA = scalars(COLUMNS)


def features(batch):
    return torch.stack([batch["a"], batch["b"]], dim=-1)


def squares(model, batch):
    return (model(features(batch)).squeeze(-1) - batch["y"]) ** 2


def tanh_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 33), nn.Tanh(), nn.Linear(33, 1))


def engine_of(loss=squares, metrics=None, model=None, metrics_length=0):
    model = model or tanh_model()
    task = Task(model, loss, metrics)
    return RecordGradients(task, spec_of(model), SCHEMA, metrics_length), model


def evaluate(engine, rows, metrics_length=0):
    gradients = torch.full((len(rows), len(engine._flat.vector_D)), torch.nan)
    metrics = torch.full((len(rows), metrics_length), torch.nan)
    engine(torch.from_numpy(rows), gradients, metrics)
    return gradients.numpy(), metrics.numpy()


def check(engine, physical_batch):
    shapes = [
        (physical_batch, width) for width in (len(engine._flat.vector_D), engine._metrics_length)
    ]
    engine.check_independence(*(tuple(torch.empty(s) for s in shapes) for _ in range(2)))


def flat(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def test_gradients_equal_those_of_plain_autograd_one_record_at_a_time():
    engine, model = engine_of()
    engine.set_model(flat(model))
    rows = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    found, _ = evaluate(engine, rows)
    for row, gradient in zip(torch.from_numpy(rows), found, strict=True):
        batch = {name: row[i : i + 1] for i, name in enumerate(COLUMNS)}
        expected = torch.autograd.grad(squares(model, batch).sum(), list(model.parameters()))
        expected = torch.cat([part.reshape(-1) for part in expected])
        torch.testing.assert_close(torch.from_numpy(gradient), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("physical_batch", [16, 48, 64, 128, 256])  # as the trainer pads them
def test_bits_do_not_depend_on_slot_or_mates(physical_batch):
    engine, model = engine_of()
    check(engine, physical_batch)
    engine.set_model(flat(model))
    source = np.random.default_rng(physical_batch)
    probe = source.normal(size=3).astype(np.float32)
    seen = set()
    for slot in {0, physical_batch // 3, physical_batch - 1}:
        rows = source.normal(size=(physical_batch, 3)).astype(np.float32) * 100
        rows[slot - 1] = np.nan
        rows[slot] = probe
        seen.add(evaluate(engine, rows)[0][slot].tobytes())
    assert len(seen) == 1


def test_a_record_that_is_not_finite_spoils_only_its_own_row():
    engine, model = engine_of()
    engine.set_model(flat(model))
    rows = np.ones((4, 3), dtype=np.float32)
    rows[2, 0] = np.inf
    found, _ = evaluate(engine, rows)
    finite = np.isfinite(found).all(axis=1)
    assert finite.tolist() == [True, True, False, True]


def test_a_parameter_that_the_loss_does_not_use_has_gradient_zero():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "spare": nn.Linear(2, 2)})
    engine, _ = engine_of(lambda m, batch: squares(m["used"], batch), model=model)
    check(engine, 16)
    found, _ = evaluate(engine, np.ones((4, 3), dtype=np.float32))
    assert (found[:, 3:] == 0).all()
    assert (found[:, :3] != 0).any()


def test_the_check_notices_a_result_that_hangs_on_the_slot():
    # What matrix kernels do to the rows beyond their last full tile, made certain.
    def slot_metrics(model, batch):
        values = squares(model, batch)
        return (values * (1 + 1e-7 * (torch.arange(len(values)) == len(values) - 1))).unsqueeze(1)

    engine, _ = engine_of(metrics=slot_metrics, metrics_length=1)
    with pytest.raises(TaskError, match="its place in it"):
        check(engine, 16)


def mean_loss(model, batch):
    return squares(model, batch).mean()


def centred_metrics(model, batch):
    values = squares(model, batch)
    return (values - values.mean()).unsqueeze(1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"loss": mean_loss}, "take no mean"),
        ({"metrics": centred_metrics, "metrics_length": 1}, "depend on the other records"),
        ({"metrics": centred_metrics, "metrics_length": 2}, r"shape \(16, 1\)"),
    ],
)
def test_mistakes_of_a_task_are_found_before_any_record_is_touched(arguments, says):
    with pytest.raises(TaskError, match=says):
        check(engine_of(**arguments)[0], 16)


def test_a_job_with_metrics_needs_the_function():
    with pytest.raises(TaskError, match="define a function metrics"):
        engine_of(metrics_length=3)


@pytest.mark.parametrize(
    ("model", "loss", "hint"),
    [
        (nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)), squares, "'1' .Dropout. drops out"),
        (nn.Linear(2, 1), lambda m, b: squares(m, b) * torch.rand(1), "draws random numbers"),
        (nn.Linear(2, 1), lambda m, b: squares(m, b).sum(), r"reduction='none'"),
        (nn.Linear(2, 1), lambda m, b: 3.0, "must return a tensor, not float"),
    ],
)
def test_what_per_record_evaluation_cannot_do_is_refused_with_the_mend(model, loss, hint):
    with pytest.raises(TaskError, match=hint):
        engine_of(loss, model=model)


def test_dropout_in_eval_mode_is_fine():
    engine, _ = engine_of(model=nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)).eval())
    check(engine, 16)


def test_only_trainable_float32_parameters_make_the_vector():
    model = tanh_model()
    model[0].requires_grad_(False)
    assert [t.name for t in spec_of(model).tensors] == ["2.weight", "2.bias"]
    with pytest.raises(TaskError, match="float32"):
        spec_of(nn.Linear(2, 2).double())
    with pytest.raises(TaskError, match="no trainable"):
        spec_of(nn.Tanh())


def test_local_steps_need_one_loss_a_record():
    model = nn.Linear(2, 1)
    steps = LocalSteps(Task(model, mean_loss, None), spec_of(model), SCHEMA)
    with pytest.raises(TaskError, match="one value a record"):
        steps.step(torch.ones(4, 3), 0.1)
