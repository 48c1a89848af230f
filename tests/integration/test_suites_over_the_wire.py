"""Whole consortia of real processes on the other suites: enrol, seal, train, be killed, go on."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from privacy.secagg.keys import MLKEM768_X25519, X25519
from tests.integration.test_federation_faults import ENOUGH, check_books, goes_on
from tests.support.real_federation import SITES, RealFederation


@pytest.mark.parametrize("suite", [X25519, MLKEM768_X25519], ids=lambda suite: suite.name)
def test_real_sites_train_on_another_suite_and_outlive_a_kill(tmp_path, suite):
    with RealFederation(tmp_path / "banks", print) as banks:
        banks.begin(suite)
        for site in SITES:
            keys = tmp_path / "banks" / "sites" / site / "state" / "keys"
            signing, tls = (
                load_pem_private_key((keys / name).read_bytes(), None)
                for name in ("signing.key", "tls.key")
            )
            assert isinstance(signing, ed25519.Ed25519PrivateKey)
            assert isinstance(tls, ec.EllipticCurvePrivateKey), "TLS stays P-256"
        job_id = banks.submit(ENOUGH)
        goes_on(banks, job_id, rounds=2)
        # Slot 1 is durable, its shares may have left: what was drawn for them must come again.
        banks.arm("bank-2", "RosterArrived:4:after:KILL")
        banks.struck("bank-2")
        banks.run_site("bank-2")
        goes_on(banks, job_id, rounds=2)
        job = check_books(banks, job_id)
        assert all(len(banks.charges(site, job_id)) >= 2 for site in SITES)
        assert job.round >= 4
