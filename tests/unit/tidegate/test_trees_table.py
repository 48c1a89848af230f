from pathlib import Path

import pytest

from privacy.errors import UsageError
from privacy.planning import CohortRules, check_encoding, derive_encoding
from tests.support.tree_jobs import DP, NO_DP, trees_job, trees_toml
from tidegate.job_terms import privacy_terms, update_spec
from tidegate.jobfile import JobFile
from tidegate.tree_layout import TreeLayout
from tidegate.tree_model import model_spec

EXAMPLES = Path(__file__).parents[3] / "examples" / "credit-trees"
RULES = CohortRules(1, 4, 5)


def refused(trees="trees = 2\ndepth = 2", privacy=NO_DP, change=lambda text: text):
    with pytest.raises(UsageError) as caught:
        JobFile.parse(change(trees_toml(trees, privacy)).encode())
    return str(caught.value)


def test_features_default_to_all_but_the_label_cut_by_their_bounds():
    work = trees_job("trees = 2\ndepth = 2").work
    assert work.features == ("a", "b", "c")
    assert [len(edges) for edges in work.edges] == [5, 7, 4]
    assert (work.structure, work.features_per_tree, work.sums) == ("levels", 3, 4)


def test_edges_of_the_job_file_come_first_and_need_no_bounds():
    def without_bounds(text):
        return text.replace("low = 0.0\nhigh = 7.0\n", "")

    toml = trees_toml("trees = 2\ndepth = 2\n[trees.edges]\nb = [1, 2.5]")
    job = JobFile.parse(without_bounds(toml).encode())
    assert job.work.edges[1] == (1.0, 2.5)
    assert "'b' has no public bounds" in refused(change=without_bounds)


@pytest.mark.parametrize(
    ("trees", "said"),
    [
        ("trees = 2", "depth is missing"),
        ("trees = 0\ndepth = 2", "trees = 0"),
        ("trees = 2\ndepth = 11", "depth = 11"),
        ('features = ["a", "a"]\ntrees = 2\ndepth = 2', "none of them twice"),
        ('features = ["a", "y"]\ntrees = 2\ndepth = 2', "not a feature"),
        ('features = ["z"]\ntrees = 2\ndepth = 2', "name of one of the [[columns]]"),
        ("features = []\ntrees = 2\ndepth = 2", "1 to 256 columns"),
        ("features_per_tree = 4\ntrees = 2\ndepth = 2", "features_per_tree = 4"),
        ('structure = "rows"\ntrees = 2\ndepth = 2', "structure = 'rows'"),
        ("trees = 2\ndepth = 2\n[trees.edges]\na = [2.0, 1.0]", "increase"),
        ("trees = 2\ndepth = 2\n[trees.edges]\na = [1.0, 1.00000000001]", "increase"),
        ("trees = 2\ndepth = 2\n[trees.edges]\na = []", "increase"),
        ("trees = 2\ndepth = 2\n[trees.edges]\nz = [1.0]", "unknown key 'z'"),
        ("trees = 2\ndepth = 2\nbin = 8", "did you mean 'bins'"),
        ("trees = 10000\ndepth = 10", "is the most"),
    ],
)
def test_each_wrong_key_is_named(trees, said):
    assert said in refused(trees)


def test_rounds_follow_from_the_trees_and_cannot_be_given():
    assert "must be absent" in refused(
        change=lambda text: text.replace("[trees]", "rounds = 3\n[trees]", 1)
    )


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ('mode = "site"\nepsilon = 1.0\ndelta_dp = 1e-6', "sums over records"),
        (f"{DP}\nclipping_norm = 1.0", "its own bound"),
        (f"{DP}\nexpected_batch_size = 10", "not divided"),
    ],
)
def test_privacy_that_does_not_fit_is_refused(privacy, said):
    assert said in refused(privacy=privacy)


@pytest.mark.parametrize("file", ["job.toml", "levels.toml"])
def test_the_examples_plans_hold(file):
    job = JobFile.parse((EXAMPLES / file).read_bytes())
    spec = model_spec(job.work)
    terms, summed = privacy_terms(job), update_spec(job, spec)
    plan = derive_encoding(terms, summed, RULES, bytes(32))
    epsilon = check_encoding(plan, terms, summed, RULES)
    if file == "job.toml":
        assert plan.clip_gradient == TreeLayout(job.work).norm == 1.0
        assert 2.99 < epsilon <= 3.000001
        assert plan.noise_variance * 3 >= (plan.noise_multiplier * plan.sensitivity) ** 2


def test_a_model_of_other_trees_is_refused_by_both_ends():
    job, other = trees_job(), trees_job("trees = 5\ndepth = 3\nbins = 16")
    with pytest.raises(Exception, match="not the trees of the job"):
        update_spec(job, model_spec(other.work))
