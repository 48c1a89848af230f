"""The credit example: its split, its task under vmap, its metrics, its Flower apps, its job."""

import ast
import math
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap

from privacy.metrics import summarise
from tests.support.credit_market import FOLDER, csv_text, forget, load, make_wheel
from tidegate.jobfile import JobFile


@pytest.fixture(scope="module", autouse=True)
def _no_modules_left():
    yield
    forget()


task = load("task")
split = load("split")
ranking = load("ranking")
job = JobFile.parse((FOLDER / "job.toml").read_bytes())


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return split.read_table(*make_wheel(tmp_path_factory.mktemp("wheel"), csv_text(1000)))


def rows_of(part):
    return np.stack([part[name] for name in task.COLUMNS], axis=1)


def as_set(part):
    return {row.tobytes() for row in rows_of(part)}


# --- the split ------------------------------------------------------------------------------------


def test_the_table_has_the_tasks_columns_as_float32_with_nan_for_na(table):
    assert tuple(table) == task.COLUMNS
    assert all(column.dtype == np.float32 and len(column) == 1000 for column in table.values())
    assert np.isnan(table["income"]).sum() > 100
    assert np.isnan(table["dependents"]).sum() > 10
    assert not np.isnan(table["default"]).any()


def test_the_table_holds_the_csvs_values(tmp_path):
    text = csv_text(1).splitlines()[0] + "\n1,1,0.766126609,45,2,0.802982129,NA,13,3,6,4,2\n"
    table = split.read_table(*make_wheel(tmp_path, text))
    assert table["default"][0] == 1
    assert table["utilisation"][0] == np.float32(0.766126609)
    assert (table["late_30_59"][0], table["late_60_89"][0], table["late_90"][0]) == (2, 4, 3)
    assert (table["age"][0], table["open_lines"][0], table["property_loans"][0]) == (45, 13, 6)
    assert math.isnan(table["income"][0])
    assert table["dependents"][0] == 2


def test_every_customer_is_in_exactly_one_part(table):
    parts = split.split(table, seed=3)
    assert len(parts.market_test["default"]) == 200
    trained = [as_set(bank.train) for bank in parts.banks]
    assert sum(map(len, trained)) == 800
    everything = set.union(*trained, as_set(parts.market_test))
    assert everything == as_set(table)
    assert len(everything) == 1000


def test_bank_tests_make_up_the_consortiums(table):
    parts = split.split(table, seed=3)
    tested = [as_set(bank.test) for bank in parts.banks]
    assert sum(map(len, tested)) == 200
    assert set.union(*tested) == as_set(parts.market_test)


def test_the_split_is_the_seeds(table):
    first, again, other = (split.split(table, seed) for seed in (1, 1, 2))
    for bank, same in zip(first.banks, again.banks, strict=True):
        assert rows_of(bank.train).tobytes() == rows_of(same.train).tobytes()
    assert as_set(first.market_test) != as_set(other.market_test)


def test_banks_hold_their_segments_and_none_is_empty(table):
    one, two, three, four, five = (bank.train for bank in split.split(table).banks)
    for prime in (one, two):
        assert max(prime[name].max() for name in task.LATE) == 0
    assert one["property_loans"].min() > 0
    assert two["property_loans"].max() == 0
    assert three["late_30_59"].min() > 0
    assert three["late_60_89"].max() == three["late_90"].max() == 0
    assert four["late_60_89"].min() > 0
    assert four["late_90"].max() == 0
    assert five["late_90"].min() > 0


def test_written_parts_come_back_and_hold_no_pickle(table, tmp_path):
    parts = split.split(table)
    files = split.write(parts, tmp_path / "out")
    assert set(files) == {f"bank-{n}/{p}" for n in range(1, 6) for p in ("train", "test")} | {
        "market/test"
    }
    back = split.load_shard(files["bank-3/train"])
    assert tuple(back) == task.COLUMNS
    assert rows_of(back).tobytes() == rows_of(parts.banks[2].train).tobytes()


def test_loading_refuses_a_pickled_array(tmp_path):
    np.savez(tmp_path / "evil.npz", age=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        split.load_shard(tmp_path / "evil.npz")


def test_another_wheel_is_refused(tmp_path):
    path, _ = make_wheel(tmp_path, csv_text(3))
    with pytest.raises(split.DataError, match="SHA-256"):
        split.read_table(path)
    with pytest.raises(split.DataError, match="download"):
        split.read_table(tmp_path / "absent.whl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "columns"),
        (csv_text(3) + "4,1,2\n", "fields"),
        (csv_text(3).replace("\n1,", "\nspam,", 1), "not a number"),
        (csv_text(0), "no rows"),
    ],
)
def test_another_table_is_refused(tmp_path, text, said):
    with pytest.raises(split.DataError, match=said):
        split.read_table(*make_wheel(tmp_path, text))


def test_a_wheel_without_the_archive_is_refused(tmp_path):
    with pytest.raises(split.DataError, match=r"credit_data\.zip"):
        split.read_table(*make_wheel(tmp_path, csv_text(3), archive="other.zip"))


def test_a_member_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(split, "MAX_BYTES", 20_000)
    path, digest = make_wheel(tmp_path, "0" * 30_000)
    assert path.stat().st_size < 20_000
    with pytest.raises(split.DataError, match="unpacks to more"):
        split.read_table(path, digest)


# --- the task -------------------------------------------------------------------------------------


class LossOf(nn.Module):
    """Let ``functional_call`` put parameters into a task's loss or metrics."""

    def __init__(self, function, model):
        super().__init__()
        self.function, self.model = function, model

    def forward(self, batch):
        return self.function(self.model, batch)


def batch_of(part, rows=40):
    return {name: torch.from_numpy(values[:rows].copy()) for name, values in part.items()}


def fresh_model(seed=0):
    torch.manual_seed(seed)
    return task.model()


def per_record_gradients(model, batch):
    module = LossOf(task.loss, model)
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def record_loss(parameters, record):
        one = {name: value.unsqueeze(0) for name, value in record.items()}
        return functional_call(module, parameters, (one,)).squeeze(0)

    gradients = vmap(grad(record_loss), in_dims=(None, 0))(parameters, batch)
    return torch.cat([value.flatten(1) for value in gradients.values()], dim=1)


def test_the_model_has_the_stated_size_and_nothing_but_parameters():
    model = task.model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 5545
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_per_record_gradients_equal_those_of_a_loop(table):
    model, batch = fresh_model(), batch_of(table)
    got = per_record_gradients(model, batch)
    for row in range(40):
        one = {name: values[row : row + 1] for name, values in batch.items()}
        model.zero_grad()
        task.loss(model, one).squeeze().backward()
        want = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        torch.testing.assert_close(got[row], want, rtol=1e-5, atol=1e-6)


def test_a_records_loss_does_not_depend_on_its_batch_mates(table):
    model, batch = fresh_model(), batch_of(table)
    mates = {name: values.clone() for name, values in batch.items()}
    for name, value in mates.items():
        value[1:] = float("nan") if name != task.TARGET else 1.0
    torch.testing.assert_close(task.loss(model, batch)[0], task.loss(model, mates)[0])
    torch.testing.assert_close(task.metrics(model, batch)[0], task.metrics(model, mates)[0])


odd = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 96.0, 98.0, 1e30, 5e-324, 3.0])
values = st.one_of(odd, st.floats(width=32, allow_nan=True, allow_infinity=True))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_the_columns_hold_inputs_loss_gradients_and_metrics_are_finite(data):
    row = {name: data.draw(values, label=name) for name in task.COLUMNS if name != task.TARGET}
    label = data.draw(st.sampled_from([0.0, 1.0]), label="label")
    batch = {name: torch.tensor([value], dtype=torch.float32) for name, value in row.items()}
    batch[task.TARGET] = torch.tensor([label])
    model = fresh_model()
    inputs = task.scale(batch)
    assert inputs.shape == (1, task.INPUTS)
    assert inputs.abs().max() <= 4.0
    assert torch.isfinite(task.loss(model, batch)).all()
    assert torch.isfinite(per_record_gradients(model, batch)).all()
    assert task.metrics(model, batch)[0, 1:].sum() == 1.0


def test_all_missing_is_finite_and_in_the_middle():
    batch = {name: torch.full((2,), math.nan) for name in task.COLUMNS}
    batch[task.TARGET] = torch.tensor([0.0, 1.0])
    assert torch.isfinite(task.loss(fresh_model(), batch)).all()


def test_scaling_sees_one_record_at_a_time(table):
    """A statistic of the batch would make a record's inputs depend on the others."""
    batch = batch_of(table, 1000)
    whole = task.scale(batch)
    for row in (0, 17, 999):
        alone = task.scale({name: column[row : row + 1] for name, column in batch.items()})
        torch.testing.assert_close(alone[0], whole[row], rtol=0, atol=1e-6)


def test_the_task_reads_no_statistic_but_published_ones():
    tree = ast.parse((FOLDER / "task.py").read_text())
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imported == {"math", "torch", "collections", "published"}
    assert task.SCALING == {}, "the example ships no scaling.toml"
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & {"mean", "std", "var", "median", "quantile", "min", "max", "sum", "item"}


def test_published_statistics_take_the_place_of_constants(tmp_path, monkeypatch, table):
    file = tmp_path / "scaling.toml"
    file.write_text("[columns.age]\nlow = 18.0\nhigh = 98.0\nmean = 50.0\nstd = 20.0\n")
    batch = {name: torch.from_numpy(values) for name, values in table.items()}
    batch["age"] = batch["age"].clone()
    batch["age"][:3] = torch.tensor([math.nan, 18.0, 500.0])
    before = task.scale(batch)
    monkeypatch.setattr(task, "SCALING", load("published").read_scaling(file))
    after = task.scale(batch)
    assert after[:3, 5].tolist() == pytest.approx([0.0, -1.6, 2.4])
    others = [column for column in range(task.INPUTS) if column != 5]
    assert torch.equal(before[:, others], after[:, others])
    assert torch.isfinite(after).all()


# --- metrics --------------------------------------------------------------------------------------


def skewed_model():
    """Spread the scores over the bins, so that the histogram has something to count."""
    model = fresh_model(3)
    with torch.no_grad():
        model.layers[-1].weight.mul_(12.0)
        model.layers[-1].bias.fill_(-3.0)
    return model


def test_each_metric_block_has_norm_at_most_one(table):
    metrics_BM = task.metrics(skewed_model(), batch_of(table, 1000))
    assert metrics_BM.shape == (1000, job.metrics_length)
    assert (metrics_BM[:, 0] >= 0).all()
    assert (metrics_BM[:, 0] <= 1).all()
    assert (metrics_BM[:, 1:].norm(dim=1) == 1).all()


def test_metrics_of_a_broken_model_stay_within_the_norm(table):
    model = fresh_model()
    with torch.no_grad():
        model.layers[-1].bias.fill_(math.nan)
    metrics_BM = task.metrics(model, batch_of(table))
    assert (metrics_BM[:, 0] == 1).all()
    assert (metrics_BM[:, 1:] == 0).all()


def test_metrics_run_under_vmap(table):
    model, batch = skewed_model(), batch_of(table)
    module = LossOf(task.metrics, model)
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def record_metrics(record):
        one = {name: value.unsqueeze(0) for name, value in record.items()}
        return functional_call(module, parameters, (one,)).squeeze(0)

    torch.testing.assert_close(vmap(record_metrics)(batch), task.metrics(model, batch))


def test_summed_metrics_read_back_as_the_exact_loss_and_auc(table):
    model, batch = skewed_model(), batch_of(table, 1000)
    sums_M = task.metrics(model, batch).double().sum(0).detach().numpy()
    read = summarise(job.metrics, sums_M, expected_records=1.0)
    with torch.no_grad():
        scores = model(batch).numpy()
        losses = task.loss(model, batch).clamp(max=task.LOSS_UPPER)
    labels = batch[task.TARGET].numpy()
    low, high = task.SCORE_RANGE
    width = (high - low) / task.AUC_BINS
    binned = np.clip(np.floor((scores - low) / width), 0, task.AUC_BINS - 1)
    assert len(np.unique(binned)) > 8
    assert read["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
    assert read["auc"] == pytest.approx(ranking.auc(binned, labels), abs=1e-9)
    # Binning only turns pairs within a bin into ties: the error is at most half their share.
    both = [
        (binned[labels > 0.5] == b).sum() * (binned[labels < 0.5] == b).sum() for b in range(20)
    ]
    bound = sum(both) / ((labels > 0.5).sum() * (labels < 0.5).sum()) / 2
    assert abs(read["auc"] - ranking.auc(scores, labels)) <= bound + 1e-9


def test_noised_sums_read_back_near_the_truth(table):
    model, batch = skewed_model(), batch_of(table, 1000)
    sums_M = task.metrics(model, batch).double().sum(0).detach().numpy()
    noised = sums_M + np.random.default_rng(5).normal(0, 2.0, sums_M.shape)
    assert noised.min() < 0
    exact, read = (summarise(job.metrics, sums, 1.0) for sums in (sums_M, noised))
    assert read["auc"] == pytest.approx(exact["auc"], abs=0.1)
    assert read["loss"] == pytest.approx(exact["loss"], abs=0.1)


def test_the_job_declares_what_the_task_computes():
    loss_metric, auc_metric = job.metrics.metrics
    assert (loss_metric.name, loss_metric.upper) == ("loss", task.LOSS_UPPER)
    assert (auc_metric.name, auc_metric.bins) == ("auc", task.AUC_BINS)
    assert job.task.file == "task.py"
    assert job.privacy.epsilon == 3.0
    assert job.privacy.expected_batch_size == round(job.privacy.sampling_rate * 120_000)


@pytest.mark.parametrize(
    ("scores", "labels", "want"),
    [
        ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
        ([4, 3, 2, 1], [0, 0, 1, 1], 0.0),
        ([1, 1, 1, 1], [0, 1, 0, 1], 0.5),
        ([1, 2, 2, 3], [0, 0, 1, 1], 0.875),
    ],
)
def test_auc_is_the_share_of_pairs_in_order(scores, labels, want):
    assert ranking.auc(np.array(scores, float), np.array(labels, float)) == want


def test_auc_without_one_class_is_nan():
    assert math.isnan(ranking.auc(np.array([1.0, 2.0]), np.array([0.0, 0.0])))


# --- the Flower apps ------------------------------------------------------------------------------


def test_pyproject_names_existing_flower_components():
    flwr = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for kind, reference in flwr["components"].items():
        module, _, attribute = reference.partition(":")
        assert (FOLDER / f"{module}.py").exists(), kind
        assert hasattr(load(module), attribute)
    assert {"num-server-rounds", "local-steps", "batch-size", "learning-rate"} <= set(
        flwr["config"]
    )
