"""A model file is what a job released, or it is refused with the reason."""

import hashlib

import numpy as np
import pytest

from privacy.errors import PeerError, Reason
from privacy.spec import VectorSpec
from tidegate import keys, pki, provenance

TENSORS = {"b": np.arange(3, dtype=np.float32), "a": np.ones((2, 2), np.float32)}
SPEC = VectorSpec.of(TENSORS)
FACTS = {
    "job": "credit-1",
    "epsilon": "2.9",
    provenance.SPEC: SPEC.to_bytes().decode(),
    provenance.DIGEST: hashlib.sha256(SPEC.flatten(TENSORS).tobytes()).hexdigest(),
}


def authority(name="consortium"):
    return pki.make_ca(name, pki.Validity(0.0))


@pytest.fixture(scope="module")
def sealed():
    ca = authority()
    key = keys.make_key()
    hosts = ["127.0.0.1"]
    validity = pki.Validity(0.0)
    certificate = pki.issue_server_cert(ca, key.public_key(), hosts, "main", validity)
    signer = keys.EcdsaSigner(key)
    return ca.certificate_pem(), provenance.seal(FACTS, certificate, signer.sign)


def test_a_released_model_is_recognised_whatever_the_order_of_its_tensors(sealed):
    ca_pem, metadata = sealed
    for names in (("a", "b"), ("b", "a")):
        checked = provenance.check(metadata, {name: TENSORS[name] for name in names}, ca_pem)
        assert checked.aggregator == "main"
        assert dict(checked.facts) == FACTS


def refusal(metadata, tensors, ca_pem):
    with pytest.raises(PeerError) as caught:
        provenance.check(metadata, tensors, ca_pem)
    return caught.value.reason


def test_a_changed_tensor_is_refused(sealed):
    ca_pem, metadata = sealed
    changed = dict(TENSORS, b=np.array([0, 1, 3], np.float32))
    assert refusal(metadata, changed, ca_pem) is Reason.WRONG_DIGEST


@pytest.mark.parametrize("name", ["job", "epsilon", provenance.DIGEST])
def test_a_changed_fact_is_refused(sealed, name):
    ca_pem, metadata = sealed
    assert refusal(metadata | {name: "1" * 64}, TENSORS, ca_pem) is Reason.BAD_SIGNATURE


def test_an_added_fact_is_refused(sealed):
    ca_pem, metadata = sealed
    assert refusal(metadata | {"tier": "enforced"}, TENSORS, ca_pem) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("name", ["signature", "certificate", provenance.SPEC, provenance.DIGEST])
def test_a_missing_part_is_refused(sealed, name):
    ca_pem, metadata = sealed
    lacking = {key: value for key, value in metadata.items() if key != name}
    assert refusal(lacking, TENSORS, ca_pem) is Reason.MALFORMED


def test_another_consortiums_model_is_refused(sealed):
    _, metadata = sealed
    # Same name, another key: a CA is not its name.
    reason = refusal(metadata, TENSORS, authority().certificate_pem())
    assert reason is Reason.UNAUTHENTICATED


def test_a_site_cannot_sign_a_model():
    ca, key = authority(), keys.make_key()
    csr = pki.make_csr(key, "bank-1")
    certificate = pki.issue_site_cert_from_csr(ca, csr, "bank-1", pki.Validity(0.0))
    metadata = provenance.seal(FACTS, certificate, keys.EcdsaSigner(key).sign)
    assert refusal(metadata, TENSORS, ca.certificate_pem()) is Reason.UNAUTHENTICATED
