"""Hold packing, sampler and map to vectors made by an implementation of its own."""

import json
from pathlib import Path

import numpy as np
import pytest

from privacy.compress import LinearMap, MapKind, draw_signs
from privacy.errors import PeerError, Reason
from privacy.noise import skellam_table
from privacy.ring import pack, unpack
from tests.vectors.write_pipeline_vectors import VECTORS as WRITERS

VECTORS = Path(__file__).parents[2] / "vectors"


def load(name):
    return json.loads((VECTORS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", list(WRITERS))
def test_the_kept_script_writes_the_kept_files(name):
    assert load(name) == WRITERS[name]()


def test_packing_good():
    for case in load("packing")["good"]:
        values = np.array(case["values"], dtype=np.uint32)
        packed = bytes.fromhex(case["packed"])
        assert pack(values, case["bits"]) == packed
        assert unpack(packed, values.size, case["bits"]).tolist() == case["values"]


@pytest.mark.parametrize("case", load("packing")["bad"], ids=lambda case: case["why"])
def test_packing_bad(case):
    with pytest.raises(PeerError) as caught:
        unpack(bytes.fromhex(case["packed"]), case["count"], case["bits"])
    assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("case", load("sampler"), ids=lambda case: f"V={case['variance']}")
def test_sampler(case):
    table = skellam_table(case["variance"])
    samples = table.sample(bytes.fromhex(case["seed"]), len(case["samples"]))
    assert samples.tolist() == case["samples"]


def test_map():
    case = load("map")
    seed = bytes.fromhex(case["seed"])
    assert draw_signs(seed, 96).tolist() == case["signs"]
    chosen = LinearMap(MapKind.RANDOM_K, 96, 0, case["kept"], seed).apply(np.arange(96.0))
    assert chosen.tolist() == case["subset"]
