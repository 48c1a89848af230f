"""Name what a job can do at a site: its work is exactly one of these.

`Task`, a model and a per-record loss, trained by Tidegate's own loop; `FlowerApp`, an unchanged
Flower ``ClientApp``; `Trees`, boosted trees grown from sums of gradient histograms; `Statistics`,
sums that describe columns; `Evaluation`, a task's metrics at one model version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Setting = str | int | float | bool
"""One value of a Flower app's run config, or of a message's settings."""

STRATEGY = "strategy"
SERVER_APP = "server-app"
LEVELS = "levels"
TABLES = "tables"


@dataclass(frozen=True)
class BaseModel:
    """Frozen weights that a site holds already, by the digest that makes them the same everywhere.

    Attributes:
        name: Under which ``[base_models.NAME]`` of site.toml shows them to the task.
        sha256: Digest of the folder (``edge_node.tasks.base_models.folder_digest``), hex.
    """

    name: str
    sha256: str


@dataclass(frozen=True)
class Task:
    """A task file of the app: ``model()`` and ``loss()`` (docs: ``edge_node.tasks.task``).

    Attributes:
        file: Its path in the app.
        seed: Of the first model.
        physical_batch: Rows evaluated at once.
        base_models: Frozen weights that ``model(base_models)`` is given the folders of.
        architecture: Digest of the model's architecture (``privacy.architecture``), hex; sites
            train no other. Empty where the job names none.
    """

    file: str
    seed: int
    physical_batch: int
    base_models: tuple[BaseModel, ...] = ()
    architecture: str = ""


@dataclass(frozen=True)
class FlowerApp:
    """An unchanged Flower app, by the ``[tool.flwr.app]`` of its pyproject.toml.

    Attributes:
        driver: "strategy": Tidegate runs ``[strategy]``; "server-app": the app's own ServerApp.
        evaluate_every: Rounds between calls of the ClientApp's evaluate; 0 never, strategy only.
        run_config: Overrides of ``[tool.flwr.app.config]``.
        model: "package.module:function" that gives the first model; empty where the ServerApp's
            main says it.
        train_config: Settings of each train message, strategy only; "server-round" is added.
        evaluate_config: The same for evaluate messages.
        single_reply: The owner vouches that the ServerApp's own strategy, which overrides how
            replies are aggregated, is right when it sees one reply, the mean.
    """

    driver: str
    evaluate_every: int
    run_config: Mapping[str, Setting]
    model: str = ""
    train_config: Mapping[str, Setting] = field(default_factory=dict)
    evaluate_config: Mapping[str, Setting] = field(default_factory=dict)
    single_reply: bool = False


@dataclass(frozen=True)
class Trees:
    """Gradient boosted trees of logistic loss, grown from noised sums of gradient histograms.

    Attributes:
        label: The column with 0 or 1.
        features: The columns to split on.
        edges: Of each feature, its public bin edges: strictly increasing float32 numbers.
        structure: "levels": each sum has a histogram of each feature at each node of a level;
            "tables": each sum has one table over a few features, from which a whole tree is grown.
        features_per_tree: How many features a tree sees; drawn publicly where they are not all.
        trees: How many.
        depth: Most levels of splits in a tree.
        learning_rate: Shrinkage of a tree's leaves.
        l2: Ridge on a leaf's value (XGBoost's lambda).
        min_weight: Least sum of second derivatives in a child.
        min_gain: Least gain of a split (XGBoost's gamma).
        seed: Of the public draw of features.
    """

    label: str
    features: tuple[str, ...]
    edges: tuple[tuple[float, ...], ...]
    structure: str
    features_per_tree: int
    trees: int
    depth: int
    learning_rate: float
    l2: float
    min_weight: float
    min_gain: float
    seed: int

    @property
    def sums(self) -> int:
        """Return how many sums the trees take: one a level, or one a tree."""
        return self.trees * (self.depth if self.structure == LEVELS else 1)


@dataclass(frozen=True)
class Statistics:
    """Count, mean, variance, quantiles, histogram, shares and missingness of all ``[[columns]]``.

    Attributes:
        bins: Histogram bins of a bounded column; a column with levels has one bin each.
    """

    bins: int


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a task at one model version, which is submitted as the job's initial model.

    Attributes:
        task: The task whose ``metrics()`` is evaluated.
        of_job: The job that made the model, for people; may be empty.
        version: Its version.
    """

    task: Task
    of_job: str
    version: int


Work = Task | FlowerApp | Trees | Statistics | Evaluation


def task_of(work: Work) -> Task | None:
    """Give the task that a work runs, None where it runs none."""
    if isinstance(work, Evaluation):
        return work.task
    return work if isinstance(work, Task) else None
