"""A suite fixes the kind of a site's signing key, from the token to the sealed manifest."""

import dataclasses
import time

import pytest

from aggregator.cli import setup
from aggregator.cli.connection import OperatorFolder
from aggregator.config import AggregatorConfig, load_config
from aggregator.registry import Registry
from aggregator.store import Store
from edge_node.config import load_config as load_site_config
from edge_node.enrol import enrol
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.keys import P256, SUITES, X25519, BundleSecrets, make_bundle
from privacy.secagg.messages import SignedBundle
from privacy.secagg.signatures import SoftwareSigner, sign, spki_of
from tests.unit.tidegate.test_tokens import TOKEN
from tidegate import convert, keys, manifest, pki, tokens
from tidegate.messages import BundleStock
from tidegate.requests import EnrolmentRequest
from tidegate.tokens import hash_secret

OPERATOR = keys.EcdsaSigner(keys.make_key())
EACH = pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
TLS = [keys.fingerprint(keys.spki_der(keys.make_key())) for _ in range(4)]


def members(scheme):
    spkis = [spki_of(scheme.make_key()) for _ in TLS]
    return tuple(manifest.make_member(f"bank-{n}", TLS[n], spki) for n, spki in enumerate(spkis))


def other(suite):
    return P256 if suite is not P256 else X25519


@EACH
def test_a_manifest_takes_members_with_the_suites_keys_and_no_others(suite):
    good = manifest.Manifest(
        "demo", 1, 1, 3, members(suite.signatures), suite=suite.name, max_sites_per_person=1
    )
    raw, signature = manifest.seal(good, OPERATOR.sign)
    assert manifest.parse_and_verify(raw, signature, OPERATOR.spki()) == good
    wrong = dataclasses.replace(good, members=members(other(suite).signatures))
    with pytest.raises(UsageError, match=f"no {suite.signatures.key_kind} key"):
        manifest.seal(wrong, OPERATOR.sign)


@pytest.mark.parametrize("name", ["", "ROT13", None, 7, [], {}])
def test_a_manifest_with_an_unknown_suite_is_refused(name):
    bad = manifest.Manifest("demo", 1, 1, 3, members(P256.signatures), suite=name)
    with pytest.raises(UsageError, match="suite"):
        manifest.seal(bad, OPERATOR.sign)


@EACH
def test_a_second_encoding_of_a_key_is_no_key(suite):
    spki = spki_of(suite.signatures.make_key())
    assert suite.signatures.is_canonical(spki)
    for bad in (
        spki + b"\x00",
        spki[:-1],
        b"",
        b"\x30\x00",
        spki_of(other(suite).signatures.make_key()),
    ):
        assert not suite.signatures.is_canonical(bad)


@EACH
def test_a_token_names_the_suite(suite):
    token = dataclasses.replace(TOKEN, suite=suite.name)
    assert tokens.decode(tokens.encode(token)).suite == suite.name


@pytest.mark.parametrize("name", ["", "ROT13", None, 7, []])
def test_a_token_with_an_unknown_suite_is_refused(name):
    with pytest.raises(UsageError, match="suite"):
        tokens.encode(dataclasses.replace(TOKEN, suite=name))


@EACH
def test_signing_keys_are_kept_and_read_back(suite, tmp_path):
    key = suite.signatures.make_key()
    keys.write_private(tmp_path / "signing.key", keys.key_pem(key))
    again = keys.load_signing_key(keys.read_private(tmp_path / "signing.key"))
    assert spki_of(again) == spki_of(key)
    message = b"tidegate/sa/1 signature\x00x"
    suite.verify(spki_of(key), SoftwareSigner(again).sign(message), message)


@EACH
def test_init_writes_the_suite_for_both_sides(suite, tmp_path):
    folder = tmp_path / "c"
    setup.make_consortium(folder, "banks", "127.0.0.1", setup.Ports(0, 0, 0), suite)
    assert load_config(folder / "aggregator" / "aggregator.toml").suite == suite.name
    assert OperatorFolder.load(folder / "operator").suite == suite.name


def test_an_operator_folder_with_an_unknown_suite_is_refused(tmp_path):
    setup.make_consortium(tmp_path / "c", "banks", "127.0.0.1", setup.Ports(0, 0, 0))
    file = tmp_path / "c" / "operator" / "client.toml"
    file.write_text(file.read_text().replace(P256.name, "ROT13"))
    with pytest.raises(UsageError, match="ROT13"):
        OperatorFolder.load(tmp_path / "c" / "operator")


@EACH
def test_enrolment_takes_the_suites_kind_of_key_only_and_burns_nothing_else(suite, tmp_path):
    now_s = time.time()
    store = Store(f"sqlite:///{tmp_path / 'a.sqlite'}", tmp_path)
    try:
        authority = pki.make_ca("test", pki.Validity(now_s))
        registry = Registry(store, authority, OPERATOR.spki(), 10, suite.signatures)
        secret, _ = registry.create_token("bank-1", 60, now_s)
        csr = pki.make_csr(keys.make_key(), "bank-1")
        proof = pki.enrolment_message(hash_secret(secret), csr)
        for scheme, reason in (
            (other(suite).signatures, Reason.MALFORMED),
            (suite.signatures, None),
        ):
            key = scheme.make_key()
            request = EnrolmentRequest(secret, csr, spki_of(key), sign(key, proof))
            if reason is None:
                forged = dataclasses.replace(request, signing_proof=sign(key, proof + b"x"))
                with pytest.raises(PeerError, match="bad-signature"):
                    registry.enrol(forged, now_s)
                site, _ = registry.enrol(request, now_s)
                assert site.signing_spki == spki_of(key)
            else:
                with pytest.raises(PeerError) as caught:
                    registry.enrol(request, now_s)
                assert caught.value.reason is reason
    finally:
        store.close()


def test_a_signing_key_of_another_suite_that_was_kept_is_named(tmp_path):
    (tmp_path / "site.toml").write_text(
        '[site]\nid = "bank-1"\nfolder = "state"\n[policy]\nfile = "policy.toml"\n'
        '[store]\nmirror_file = "generation"\nboot_key_folder = "boot"\n'
    )
    config = load_site_config(tmp_path / "site.toml")
    config.keys.mkdir(parents=True, mode=0o700)
    config.folder.chmod(0o700)
    keys.write_private(config.keys / "signing.key", keys.key_pem(P256.signatures.make_key()))
    token = dataclasses.replace(TOKEN, suite=X25519.name)
    with pytest.raises(UsageError, match="is no Ed25519 key"):
        enrol(config, tokens.encode(token))


@EACH
@pytest.mark.parametrize("most", [65_536, 131_072, 1 << 22])
def test_a_manifest_whose_messages_are_too_small_for_the_suite_is_refused(suite, most, tmp_path):
    """A stock that never fits would leave every site without bundles, for ever."""
    limits = manifest.ManifestLimits(max_message_bytes=most)
    sealed = manifest.Manifest(
        "test", 1, 1, 3, members(suite.signatures), suite=suite.name, limits=limits
    )
    store = Store(f"sqlite:///{tmp_path / 'a.sqlite'}", tmp_path)
    try:
        authority = pki.make_ca("test", pki.Validity(time.time()))
        registry = Registry(store, authority, OPERATOR.spki(), 10, suite.signatures)
        config = AggregatorConfig("test", tmp_path, "", suite=suite.name)
        signed = manifest.seal(sealed, OPERATOR.sign)
        fits = _stock_bytes(suite, config.limits.bundle_stock) <= most
        why = "is not enrolled here" if fits else "seal a higher limit"
        with pytest.raises(PeerError, match=why):
            registry.put_manifest(*signed, time.time(), config)
    finally:
        store.close()


def _stock_bytes(suite, count):
    """Give the size of a stock as it travels, names at their longest."""
    secrets = BundleSecrets(bytes(32))
    bundle = make_bundle(suite, secrets, bytes(32), "c" * 63, b"i" * 16, 2**62, 1 << 39)
    stock = BundleStock((SignedBundle(bundle, bytes(72)),) * count)
    return convert.site_message_to_wire(stock).ByteSize()
