"""Surplus seeds at the site: wrapped like the other secrets, and only of the own update."""

import numpy as np
import pytest

from edge_node import commands as ec
from edge_node.bundles import pack_secrets, unpack_secrets
from privacy.noise import NoisedUpdate
from privacy.secagg.commands import Step
from privacy.secagg.keys import BundleSecrets
from privacy.secagg.site import SiteSecrets
from tests.unit.edge_node.test_local_charges import SHARED, Site

SEEDS = (b"1" * 32, b"2" * 32)
CTX = b"c" * 32


@pytest.mark.parametrize("seeds", [(), SEEDS[:1], SEEDS])
def test_packed_secrets_come_back_as_they_were(seeds):
    secrets = SiteSecrets(BundleSecrets(b"s" * 32), b"t" * 32, b"u" * 32, seeds)
    packed = pack_secrets(secrets)
    assert len(packed) == 32 * (3 + len(seeds))
    assert unpack_secrets(packed) == secrets


def test_seeds_lie_wrapped_in_the_store_and_are_erased_with_the_attempt(tmp_path):
    site = Site(tmp_path, plan=SHARED)
    site.commit(CTX, Step.SHARE_KEYS, seeds=SEEDS)
    (attempt,) = site.store.live_attempts()
    assert unpack_secrets(attempt.secrets).surplus_seeds == SEEDS
    stored = b"".join(path.read_bytes() for path in site.path.parent.iterdir() if path.is_file())
    assert CTX in stored
    assert not any(seed in stored for seed in SEEDS)
    site.store.erase(CTX)
    assert site.store.live_attempts() == []


def test_an_update_with_other_seeds_than_the_attempts_is_not_charged(tmp_path):
    site = Site(tmp_path, plan=SHARED)
    site.make()
    site.commit(CTX, Step.SHARE_KEYS)
    key, _ = site.bench.ready["job-1"]
    site.bench.ready["job-1"] = (key, NoisedUpdate(np.arange(5, dtype=np.int64), SEEDS))
    answer = site.commit(CTX, Step.MASKED_UPDATE)
    assert isinstance(answer, ec.StepRefused)
    assert "made anew" in answer.message
    assert site.entries() == []
