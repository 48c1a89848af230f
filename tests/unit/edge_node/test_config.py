import dataclasses
from pathlib import Path

import pytest

from edge_node.config import load_config
from privacy.errors import UsageError

SAMPLE = Path(__file__).parents[3] / "docs" / "samples" / "site.toml"

BASE = """
[site]
id = "bank-a"
folder = "state"
[policy]
file = "policy.toml"
"""


def load(tmp_path, text):
    path = tmp_path / "site.toml"
    path.write_text(text)
    return load_config(path)


def test_the_sample_loads_and_says_what_the_defaults_are():
    config = load_config(SAMPLE)
    assert config.datasets["credit"].id == "loans-2026"
    assert config.datasets["credit"].plug["loader"] == "csv"
    assert config.trainer == type(config.trainer)()
    assert config.session == type(config.session)()


def test_every_table_of_the_sample_is_known_and_no_key_is_left_out():
    text = SAMPLE.read_text()
    for table in ("site", "store", "aggregator", "policy", "trainer", "session", "log"):
        assert f"[{table}]" in text
    fields = {f.name for f in dataclasses.fields(load_config(SAMPLE).trainer)}
    assert all(f"{name} =" in text for name in fields)


def test_paths_are_relative_to_the_file_and_secrets_are_not_in_it(tmp_path):
    config = load(tmp_path, BASE)
    assert config.folder == tmp_path / "state"
    assert config.policy_file == tmp_path / "policy.toml"
    assert config.mirror_file == tmp_path / "state.generation"
    assert config.apps == tmp_path / "state.apps"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (BASE.replace("folder =", "foldr ="), "'folder'"),
        (BASE + "[trainer]\nmemory_mb = 1\n", "memory_mib"),
        (BASE + "[session]\nback_off_s = 1\n", "backoff_s"),
        (BASE + "[polcy]\nx = 1\n", "policy"),
        (BASE + "[aggregator]\naddress = 'x:1'\n", "sites"),
    ],
)
def test_an_unknown_key_is_refused_and_the_closest_named(tmp_path, text, word):
    with pytest.raises(UsageError, match="unknown key") as caught:
        load(tmp_path, text)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (BASE.replace("bank-a", "Bank A"), "id"),
        (BASE + "[store]\nmirror_file = 'state/generation'\n", "outside"),
        (BASE + "[trainer]\nsandbox = 'off'\n", "sandbox"),
        (BASE + "[trainer]\nthreads = true\n", "threads"),
        (BASE + "[trainer]\ntime_limit_s = nan\n", "time_limit_s"),
        (BASE + "[trainer]\ndevice = 'tpu'\n", "rocm"),
        (BASE + "[trainer]\nprecision = 'fp16'\n", "bf16"),
        (BASE + "[trainer]\nparallel = 'tp'\n", "fsdp"),
        (BASE + "[trainer]\nprocesses = 0\n", "processes"),
        (BASE + "[trainer]\nleak_share = 0.0\n", "leak_share"),
        (BASE + "[aggregator]\nsites = 'nowhere'\n", "host:port"),
        (BASE + "[datasets]\ncredit = 3\n", "credit"),
        (BASE + "[datasets.credit]\ndataset_id = ''\n", "dataset_id"),
        (BASE.replace('[policy]\nfile = "policy.toml"', ""), "file"),
        ("not toml [", "TOML"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path, text, word):
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert word in str(caught.value)


def test_a_missing_file_is_one_clear_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        load_config(tmp_path / "none.toml")


def test_a_data_set_is_charged_under_its_name_unless_told_otherwise(tmp_path):
    config = load(tmp_path, BASE + "[datasets.credit]\nloader = 'npz'\npath = 'x.npz'\n")
    assert config.datasets["credit"].id == "credit"
    assert config.datasets["credit"].plug["dataset_id"] == "credit"


# --- data sets of Flower apps --------------------------------------------------------------------

FLOWER = """
[datasets.credit]
dataset_id = "credit-2026"
[datasets.credit.flower]
readable = ["data", "/srv/more"]
node_config = { data = "/srv/more", partition-id = 3, fast = true }
"""


def test_a_data_set_of_flower_apps_alone_needs_no_loader(tmp_path):
    credit = load(tmp_path, BASE + FLOWER).datasets["credit"]
    assert (credit.id, credit.has_rows) == ("credit-2026", False)
    assert credit.flower.readable == (tmp_path / "data", Path("/srv/more"))
    assert credit.flower.node_config == {"data": "/srv/more", "partition-id": 3, "fast": True}


def test_a_data_set_may_have_a_loader_and_be_shown_to_flower_apps(tmp_path):
    plug = 'loader = "npz"\npath = "rows.npz"\n[datasets.credit.flower]'
    credit = load(tmp_path, BASE + FLOWER.replace("[datasets.credit.flower]", plug))
    credit = credit.datasets["credit"]
    assert credit.has_rows
    assert "flower" not in credit.plug
    assert credit.flower.readable


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("readable =", "redable =", "readable"),
        ('"data"', '"."', "own folder"),
        ('"data"', '"state/keys"', "own folder"),
        ('"data"', '"state"', "own folder"),
        ("partition-id = 3", "partition-id = [3]", "partition-id"),
        ('node_config = { data = "/srv/more", partition-id = 3, fast = true }', "node_config = 3",
         "node_config"),
        ('dataset_id = "credit-2026"', 'dataset_id = "credit-2026"\npath = "x"', "path"),
        ("[datasets.credit.flower]", "[datasets.credit.flowers]", "loader"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_what_flower_apps_are_shown_is_said(tmp_path, old, new, said):
    with pytest.raises(UsageError, match=said):
        load(tmp_path, BASE + FLOWER.replace(old, new))


def test_base_models_are_folders_by_name(tmp_path):
    config = load(tmp_path, BASE + '[base_models.minilm-l6]\npath = "models/minilm"\n')
    assert config.base_models == {"minilm-l6": tmp_path / "models" / "minilm"}
    assert load(tmp_path, BASE).base_models == {}
    for text, says in (
        ('[base_models."Mini LM"]\npath = "x"\n', "NAME of 1 to 63"),
        ("[base_models.a]\n", "path is missing"),
        ('[base_models.a]\npath = "x"\nsha256 = "y"\n', "sha256"),
        ("base_models = 3\n", r"\[base_models.NAME\]"),
    ):
        with pytest.raises(UsageError, match=says):
            load(tmp_path, text + BASE if text[0] == "b" else BASE + text)
