"""Linear models as tasks: scikit-learn's loss, its penalty, and its predictions on the way back."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from aggregator.optimiser import Optimiser
from aggregator.secure_rounds import SecureMean
from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.task import Task
from privacy.decode import decode_sum
from privacy.errors import UsageError
from privacy.pipeline import RecordAccumulator
from privacy.spec import VectorSpec
from tests.support.encoding_plans import make_plan
from tidegate.schema import scalars
from tidegate.sklearn_task import LOSS_UPPER, Scale, linear_task

linear_model = pytest.importorskip("sklearn.linear_model")
datasets = pytest.importorskip("sklearn.datasets")

ROUNDS = 150
NAMES = ("u", "v", "w")
SCALES = {"u": Scale(), "v": Scale(centre=1.0, width=2.0), "w": Scale(width=0.5)}


def batch_of(values_NF, labels_N, names=NAMES):
    batch = {name: torch.tensor(values_NF[:, at]) for at, name in enumerate(names)}
    return {**batch, "y": torch.tensor(labels_N)}


def data(rows=300, classes=2, seed=0):
    random = np.random.default_rng(seed)
    values = random.normal(0, 1, (rows, 3)).astype(np.float32)
    scores = values @ random.normal(0, 1.5, (3, classes)) + random.gumbel(0, 1, (rows, classes))
    return values, scores.argmax(axis=1).astype(np.float32)


def minimised(task, batch, steps=60):
    """Minimise the mean of the task's own losses by L-BFGS."""
    model = task.model()
    solver = torch.optim.LBFGS(
        model.parameters(), max_iter=steps, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure():
        solver.zero_grad()
        total = task.loss(model, batch).mean()
        total.backward()
        return total

    for _ in range(5):
        solver.step(closure)
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def scaled(values_NF):
    return (values_NF - [0.0, 1.0, 0.0]) / [1.0, 2.0, 0.5]


@pytest.mark.parametrize(
    ("estimator", "classes"),
    [
        (linear_model.LogisticRegression(C=0.05, tol=1e-8, max_iter=1000), 2),
        (linear_model.LogisticRegression(C=0.5, fit_intercept=False, tol=1e-8), 2),
        (linear_model.LogisticRegression(class_weight={0: 0.2, 1: 1.0}, tol=1e-8), 2),
        (linear_model.LogisticRegression(C=0.2, tol=1e-8, max_iter=1000), 4),
        (linear_model.LogisticRegression(class_weight={0: 0.2, 1: 1.0, 2: 0.5}, tol=1e-8), 3),
        (linear_model.Ridge(alpha=20.0), 2),
        (linear_model.LinearRegression(), 2),
    ],
)
def test_the_least_mean_loss_is_scikit_learns_own_fit(estimator, classes):
    values, labels = data(classes=classes)
    task = linear_task(estimator, label="y", columns=SCALES, records=len(labels), classes=classes)
    found = task.fitted(minimised(task, batch_of(values, labels)))
    expected = estimator.fit(scaled(values), labels)
    assert np.allclose(found[-1].coef_, expected.coef_, atol=2e-3)
    assert np.allclose(found[-1].intercept_, expected.intercept_, atol=2e-3)
    if hasattr(expected, "predict_proba"):
        chances = expected.predict_proba(scaled(values))
        assert np.abs(found.predict_proba(values) - chances).max() < 1e-3
    assert np.allclose(found.predict(values), expected.predict(scaled(values)), atol=5e-3)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "modified_huber", "log_loss"])
def test_sgd_losses_and_penalty_are_scikit_learns(loss):
    values, labels = data()
    estimator = linear_model.SGDClassifier(loss=loss, alpha=0.3)
    task = linear_task(estimator, label="y", columns=SCALES, records=1)
    model = task.model()
    weight = np.array([[0.7, -1.2, 0.4]], np.float32)
    with torch.no_grad():
        model.linear.weight.copy_(torch.tensor(weight))
        model.linear.bias.fill_(0.3)
        found = task.loss(model, batch_of(values, labels)).numpy()
    scores = scaled(values) @ weight[0] + 0.3
    margin = (2 * labels - 1) * scores
    expected = {
        "hinge": np.maximum(0, 1 - margin),
        "squared_hinge": np.maximum(0, 1 - margin) ** 2,
        "modified_huber": np.where(margin < -1, -4 * margin, np.maximum(0, 1 - margin) ** 2),
        "log_loss": np.log1p(np.exp(-margin)),
    }[loss]
    assert np.allclose(found, expected + 0.15 * (weight**2).sum(), atol=1e-4)


def test_sgd_regression_has_its_two_losses():
    values, labels = data()
    for loss in ("squared_error", "huber"):
        estimator = linear_model.SGDRegressor(loss=loss, penalty=None, epsilon=0.2)
        task = linear_task(estimator, label="y", columns=SCALES, records=1)
        found = task.loss(task.model(), batch_of(values, labels)).detach().numpy()
        huber = np.where(labels <= 0.2, labels**2 / 2, 0.2 * labels - 0.02)
        assert np.allclose(found, labels**2 / 2 if loss == "squared_error" else huber)
        assert task.metrics(task.model(), batch_of(values, labels)).shape == (len(labels), 1)


def test_the_pipeline_predicts_what_the_trained_model_does(tmp_path):
    values, labels = data()
    values[::7, 1] = np.nan
    columns = {
        "u": Scale(low=-1.0, high=2.0, log=True, centre=0.5, width=0.3),
        "v": Scale(centre=1.0, width=2.0),
        "w": Scale(high=1.0),
    }
    task = linear_task(
        linear_model.LogisticRegression(), label="y", columns=columns, records=len(labels)
    )
    tensors = minimised(task, batch_of(values, labels), steps=10)
    model = task.model()
    model.load_state_dict({name: torch.tensor(value) for name, value in tensors.items()})
    with torch.no_grad():
        scores = model(batch_of(values, labels)).numpy()
    save_file(tensors, tmp_path / "model.safetensors")
    pipeline = task.fitted(tmp_path / "model.safetensors")
    assert np.allclose(pipeline.decision_function(values), scores, atol=1e-5)
    assert np.allclose(pipeline.predict_proba(values)[:, 1], 1 / (1 + np.exp(-scores)), atol=1e-6)
    assert pipeline.score(values, labels) > 0.7


@pytest.mark.parametrize("classes", [2, 3])
def test_metrics_are_the_loss_cut_and_whether_it_is_right(classes):
    values, labels = data(classes=classes)
    task = linear_task(
        linear_model.LogisticRegression(C=1e6),
        label="y",
        columns=SCALES,
        records=len(labels),
        classes=classes,
    )
    model, batch = task.model(), batch_of(values, labels)
    tensors = minimised(task, batch)
    model.load_state_dict({name: torch.tensor(value) for name, value in tensors.items()})
    with torch.no_grad():
        metrics = task.metrics(model, batch).numpy()
        losses = task.loss(model, batch).numpy()
    assert metrics.shape == (len(labels), 2)
    assert (metrics >= 0).all()
    assert (metrics <= 1).all()
    assert np.allclose(metrics[:, 0], np.minimum(losses / LOSS_UPPER, 1), atol=1e-3)
    assert metrics[:, 1].mean() == task.fitted(tensors).score(values, labels)


def test_gradients_are_taken_record_by_record_with_several_classes():
    values, labels = data(classes=3, rows=8)
    estimator = linear_model.LogisticRegression(C=0.1)
    task = linear_task(estimator, label="y", columns=SCALES, records=8, classes=3)
    model = task.model()
    spec = VectorSpec.of({name: value.numpy() for name, value in model.state_dict().items()})
    rows = torch.tensor(np.column_stack([values, labels]))
    taken = RecordGradients(Task(model, task.loss, task.metrics), spec, scalars((*NAMES, "y")), 2)
    gradients, metrics = torch.zeros(8, spec.length), torch.zeros(8, 2)
    start = torch.linspace(-1, 1, spec.length)
    taken.set_model(start)
    taken(rows, gradients, metrics)
    whole = task.model()
    whole.load_state_dict(
        {name: torch.tensor(value) for name, value in spec.unflatten(start.numpy()).items()}
    )
    task.loss(whole, batch_of(values, labels)).sum().backward()
    expected = torch.cat([part.grad.reshape(-1) for part in whole.parameters()])
    assert torch.allclose(gradients.sum(dim=0), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (linear_model.LogisticRegression(l1_ratio=0.5, solver="saga"), "L1"),
        (linear_model.SGDClassifier(penalty="elasticnet"), "L1"),
        (linear_model.SGDClassifier(loss="perceptron"), "perceptron"),
        (linear_model.LogisticRegression(class_weight="balanced"), "balanced"),
        (linear_model.Ridge(positive=True), "positive"),
        (linear_model.Lasso(), "Lasso"),
    ],
)
def test_what_sums_of_gradients_cannot_do_is_refused(estimator, said):
    with pytest.raises(UsageError, match=said):
        linear_task(estimator, label="y", columns=SCALES, records=10)


def test_wrong_uses_are_refused():
    estimator = linear_model.LogisticRegression()
    with pytest.raises(UsageError, match="records"):
        linear_task(estimator, label="y", columns=SCALES, records=0)
    with pytest.raises(UsageError, match="label"):
        linear_task(estimator, label="u", columns=SCALES, records=1)
    with pytest.raises(UsageError, match="two classes"):
        linear_task(linear_model.Ridge(), label="y", columns=SCALES, records=1, classes=3)
    with pytest.raises(UsageError, match="low"):
        Scale(log=True)
    with pytest.raises(UsageError, match="width"):
        Scale(width=0.0)
    task = linear_task(estimator, label="y", columns=SCALES, records=1)
    with pytest.raises(UsageError, match=r"linear\.weight"):
        task.fitted({"linear.weight": np.zeros((1, 7), np.float32)})


class Consortium:
    """``SecureRounds``: five sites' sums of clipped record gradients, encoded and decoded."""

    def __init__(self, task, shards, spec):
        schema = scalars((*task.scales, "y"))
        taken = Task(task.model(), task.loss)
        self.sites = [RecordGradients(taken, spec, schema, 0) for _ in shards]
        self.shards = [torch.tensor(shard) for shard in shards]
        self.records = sum(len(shard) for shard in shards)
        self.plan = make_plan(
            gradient=spec.length, metrics=0, scale=2.0**14, clips=(64.0, 0.0), z=1e-5, bits=32
        )
        self.spec = spec
        self.model_D = np.zeros(spec.length, np.float32)

    def wait_for_nodes(self):
        return list(range(len(self.sites)))

    def run_round(self, node_ids, instruction=None):
        total = np.zeros(self.plan.length, np.int64)
        for node in node_ids:
            rows = self.shards[node]
            gradients = torch.zeros(len(rows), self.spec.length)
            self.sites[node].set_model(torch.tensor(self.model_D))
            self.sites[node](rows, gradients, torch.zeros(len(rows), 0))
            accumulator = RecordAccumulator(self.plan)
            accumulator.add(-gradients.numpy(), np.zeros((len(rows), 0), np.float32))
            total += accumulator.finish(bytes([node + 1]) * 32).vector_D
        ring = (total % 2**32).astype(np.uint32)
        return SecureMean(decode_sum(self.plan, ring, float(self.records)).gradient_D, {})


def test_federated_sums_reach_the_pooled_fit_on_breast_cancer():
    """The stated tolerance: 0.02 in any record's chance, the same accuracy within 0.5 %."""
    found = datasets.load_breast_cancer()
    values = found.data.astype(np.float32)
    labels = found.target.astype(np.float32)
    names = tuple(f"c{number}" for number in range(values.shape[1]))
    centres, widths = values.mean(axis=0), values.std(axis=0)  # stands for public constants
    columns = {
        name: Scale(float(centre), float(width))
        for name, centre, width in zip(names, centres, widths, strict=True)
    }
    estimator = linear_model.LogisticRegression(C=0.1, tol=1e-8, max_iter=2000)
    task = linear_task(estimator, label="y", columns=columns, records=len(labels))
    arrays = {name: value.detach().numpy() for name, value in task.model().state_dict().items()}
    spec = VectorSpec.of(arrays)
    table = np.column_stack([values, labels]).astype(np.float32)
    consortium = Consortium(task, [table[site::5] for site in range(5)], spec)
    options = {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-4}
    optimiser = Optimiser("FedAdam", options, spec, 4)
    for number in range(1, ROUNDS + 1):
        model = optimiser.step(number, consortium.model_D, consortium)
        consortium.model_D = model.values_D
    pipeline = task.fitted(spec.unflatten(consortium.model_D))
    pooled = estimator.fit((values - centres) / widths, labels)
    chances = pooled.predict_proba((values - centres) / widths)
    assert np.abs(pipeline.predict_proba(values) - chances).max() < 0.02
    accuracy = pooled.score((values - centres) / widths, labels)
    assert pipeline.score(values, labels) == pytest.approx(accuracy, abs=0.005)
