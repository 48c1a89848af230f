"""Who gets in: tokens hold once and expire, keys are unique, revocation is at once and for good."""

import time

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from aggregator.config import AggregatorConfig
from aggregator.registry import Registry
from aggregator.store import Store
from privacy.errors import PeerError, Reason, UsageError
from tidegate import pki
from tidegate.manifest import Manifest, ManifestLimits, make_member, seal
from tidegate.requests import EnrolmentRequest
from tidegate.tokens import hash_secret

NOW_S = time.time()


class Consortium:
    def __init__(self, folder):
        self.folder = folder
        self.authority = pki.make_ca("test", pki.Validity(NOW_S))
        self.operator = pki.make_key()
        self.open()

    def open(self, max_sites=10):
        self.store = Store(f"sqlite:///{self.folder / 'a.sqlite'}", self.folder)
        self.registry = Registry(self.store, self.authority, pki.spki_der(self.operator), max_sites)

    def restart(self):
        self.store.close()
        self.open()

    def put(self, manifest, key=None):
        signer = pki.EcdsaSigner(key or self.operator)
        config = AggregatorConfig("test", self.folder, "")
        return self.registry.put_manifest(*seal(manifest, signer.sign), NOW_S, config)


class Applicant:
    def __init__(self, site_id="bank-1"):
        self.site_id = site_id
        self.tls, self.signing = pki.make_key(), pki.make_key()

    def request(self, secret, **changes):
        csr = pki.make_csr(self.tls, self.site_id)
        message = pki.enrolment_message(hash_secret(secret), csr)
        fields = {
            "secret": secret,
            "csr_der": csr,
            "signing_spki": pki.spki_der(self.signing),
            "signing_proof": self.signing.sign(message, ec.ECDSA(hashes.SHA256())),
        }
        return EnrolmentRequest(**{**fields, **changes})


@pytest.fixture
def consortium(tmp_path):
    consortium = Consortium(tmp_path)
    yield consortium
    consortium.store.close()


def enrol(consortium, applicant=None, valid_s=60, at_s=NOW_S, **changes):
    applicant = applicant or Applicant()
    secret, _ = consortium.registry.create_token(applicant.site_id, valid_s, NOW_S)
    return consortium.registry.enrol(applicant.request(secret, **changes), at_s)


def reason_of(call, *args, **kwargs):
    with pytest.raises(PeerError) as caught:
        call(*args, **kwargs)
    return caught.value.reason


def test_a_token_gives_a_certificate_that_authenticates_the_site(consortium):
    applicant = Applicant()
    site, certificate = enrol(consortium, applicant)
    assert pki.role_of(certificate) == ("site", "bank-1")
    assert consortium.registry.authenticate(certificate) == site
    assert site.fingerprint == pki.fingerprint(pki.spki_der(applicant.signing))
    consortium.restart()
    assert consortium.registry.authenticate(certificate) == site


def test_the_store_holds_no_secret(consortium, tmp_path):
    secret, _ = consortium.registry.create_token("bank-1", 60, NOW_S)
    consortium.store.close()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()
    consortium.open()


def test_expired_token_is_refused(consortium):
    assert reason_of(enrol, consortium, valid_s=60, at_s=NOW_S + 60) is Reason.TOKEN_EXPIRED


def test_token_holds_once_also_after_a_restart(consortium):
    secret, _ = consortium.registry.create_token("bank-1", 60, NOW_S)
    consortium.registry.enrol(Applicant().request(secret), NOW_S)
    again = Applicant().request(secret)
    assert reason_of(consortium.registry.enrol, again, NOW_S) is Reason.TOKEN_USED
    consortium.restart()
    assert reason_of(consortium.registry.enrol, again, NOW_S) is Reason.TOKEN_USED


def test_unknown_token_is_refused(consortium):
    request = Applicant().request("never made")
    assert reason_of(consortium.registry.enrol, request, NOW_S) is Reason.TOKEN_UNKNOWN


def test_a_refused_enrolment_does_not_burn_the_token(consortium):
    applicant = Applicant()
    secret, _ = consortium.registry.create_token("bank-1", 60, NOW_S)
    bad = applicant.request(secret, signing_spki=pki.spki_der(pki.make_key()))
    assert reason_of(consortium.registry.enrol, bad, NOW_S) is Reason.BAD_SIGNATURE
    consortium.registry.enrol(applicant.request(secret), NOW_S)


def test_proof_for_another_token_is_refused(consortium):
    applicant = Applicant()
    proof = applicant.request("another").signing_proof
    assert reason_of(enrol, consortium, applicant, signing_proof=proof) is Reason.BAD_SIGNATURE


def test_keys_and_names_are_enrolled_once(consortium):
    first, second, third = Applicant("bank-1"), Applicant("bank-2"), Applicant("bank-3")
    spare, _ = consortium.registry.create_token("bank-1", 60, NOW_S)
    enrol(consortium, first)
    second.signing = first.signing
    third.tls = first.tls
    assert reason_of(enrol, consortium, second) is Reason.REPLAY
    assert reason_of(enrol, consortium, third) is Reason.REPLAY
    again = Applicant("bank-1").request(spare)
    assert reason_of(consortium.registry.enrol, again, NOW_S) is Reason.REPLAY
    with pytest.raises(UsageError, match="enrolled already"):
        consortium.registry.create_token("bank-1", 60, NOW_S)


def test_one_key_for_both_purposes_is_refused(consortium):
    applicant = Applicant()
    applicant.signing = applicant.tls
    assert reason_of(enrol, consortium, applicant) is Reason.POLICY


def test_revoked_site_is_refused_also_after_a_restart(consortium):
    _, certificate = enrol(consortium)
    consortium.registry.revoke("bank-1", "left the consortium", NOW_S)
    assert reason_of(consortium.registry.authenticate, certificate) is Reason.REVOKED
    consortium.restart()
    assert reason_of(consortium.registry.authenticate, certificate) is Reason.REVOKED
    with pytest.raises(UsageError, match="bank-9"):
        consortium.registry.revoke("bank-9", "typo", NOW_S)


def test_our_ca_alone_proves_nothing(consortium):
    """A certificate of the right CA and name, but with another key than the enrolled one."""
    enrol(consortium)
    validity = pki.Validity(NOW_S)
    stolen = pki.issue_site_cert_from_csr(
        consortium.authority, pki.make_csr(pki.make_key(), "x"), "bank-1", validity
    )
    unknown = pki.issue_site_cert_from_csr(
        consortium.authority, pki.make_csr(pki.make_key(), "x"), "bank-7", validity
    )
    operator = pki.issue_operator_cert(
        consortium.authority, pki.make_key().public_key(), "bank-1", validity
    )
    for certificate in (stolen, unknown, operator):
        found = reason_of(consortium.registry.authenticate, certificate)
        assert found is Reason.UNAUTHENTICATED


def test_no_more_sites_than_allowed(consortium):
    consortium.store.close()
    consortium.open(max_sites=1)
    enrol(consortium, Applicant("bank-1"))
    assert reason_of(enrol, consortium, Applicant("bank-2")) is Reason.POLICY


def sealed(consortium, count=4, **changes):
    members = []
    for index in range(count):
        applicant = Applicant(f"bank-{index}")
        site, _ = enrol(consortium, applicant)
        members.append(make_member(site.site_id, site.node_fingerprint, site.signing_spki))
    fields = {"consortium_id": "test", "roster_epoch": 1, "colluders": 1, "min_survivors": 4}
    return Manifest(members=tuple(members), **{**fields, **changes})


def test_manifest_of_the_operator_is_taken_once_and_survives(consortium):
    manifest = sealed(consortium)
    kept = consortium.put(manifest)
    assert kept.manifest_hash == manifest.hash()
    consortium.restart()
    assert consortium.registry.sealed.manifest == manifest
    assert consortium.put(manifest).manifest == manifest
    other = Manifest(**{**vars(manifest), "min_survivors": 3})
    assert reason_of(consortium.put, other) is Reason.REPLAY


def test_manifest_by_another_key_or_with_other_keys_is_refused(consortium):
    manifest = sealed(consortium)
    assert reason_of(consortium.put, manifest, pki.make_key()) is Reason.BAD_SIGNATURE
    swapped = make_member("bank-0", pki.fingerprint(b"x"), pki.spki_der(pki.make_key()))
    stranger = make_member("bank-9", pki.fingerprint(b"y"), pki.spki_der(pki.make_key()))
    for members in ((swapped, *manifest.members[1:]), (*manifest.members, stranger)):
        wrong = Manifest(**{**vars(manifest), "members": members})
        assert reason_of(consortium.put, wrong) is Reason.POLICY
    larger = ManifestLimits(max_message_bytes=1 << 26)
    for changes in ({"consortium_id": "other"}, {"limits": larger}):
        wrong = Manifest(**{**vars(manifest), **changes})
        assert reason_of(consortium.put, wrong) is Reason.POLICY
