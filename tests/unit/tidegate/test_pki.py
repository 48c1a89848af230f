"""Certificates: what the CA writes, what is read back, and what TLS makes of it."""

import datetime as dt
from concurrent import futures

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privacy.errors import PeerError, Reason, UsageError
from tidegate import pki

NOW_S = dt.datetime.now(dt.UTC).timestamp()
TODAY = pki.Validity(NOW_S)
CA = pki.make_ca("test", TODAY)


def site(ca=CA, site_id="bank-1", validity=TODAY):
    key = pki.make_key()
    csr = pki.make_csr(key, site_id)
    return key, pki.issue_site_cert_from_csr(ca, csr, site_id, validity)


def operator(ca=CA):
    key = pki.make_key()
    return key, pki.issue_operator_cert(ca, key.public_key(), "alice", TODAY)


def refused(reason, call, *args):
    with pytest.raises(PeerError) as caught:
        call(*args)
    assert caught.value.reason is reason


def hand_made(sans, usages=(ExtendedKeyUsageOID.CLIENT_AUTH,)):
    """A certificate that our own functions never make."""
    key = pki.make_key()
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]))
        .issuer_name(CA.certificate.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
    )
    if sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    certificate = builder.sign(CA.key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.DER)


class TestRoles:
    def test_each_kind_reads_back(self):
        server = pki.issue_server_cert(CA, pki.make_key().public_key(), ["127.0.0.1"], "hub", TODAY)
        assert pki.role_of(server) == ("aggregator", "hub")
        assert pki.role_of(site()[1]) == ("site", "bank-1")
        assert pki.role_of(operator()[1]) == ("operator", "alice")

    def test_der_reads_as_pem_does(self):
        pem = site()[1]
        der = pki.load_certificate(pem).public_bytes(serialization.Encoding.DER)
        assert pki.role_of(der) == pki.role_of(pem)

    @pytest.mark.parametrize(
        "uris",
        [
            [],
            ["https://site/bank-1"],
            ["tidegate://admin/bank-1"],
            ["tidegate://site/"],
            ["tidegate://site/Bank"],
            ["tidegate://site/bank-1/"],
            ["tidegate://site/bank-1?x"],
            ["tidegate://site/bank-1\n"],
            ["tidegate://site/../operator/alice"],
            ["xtidegate://site/bank-1"],
            ["tidegate://site/bank-1", "tidegate://operator/bank-1"],
            ["tidegate://site/" + "a" * 64],
        ],
    )
    def test_anything_but_one_good_uri_is_refused(self, uris):
        sans = [x509.UniformResourceIdentifier(uri) for uri in uris]
        refused(Reason.UNAUTHENTICATED, pki.role_of, hand_made(sans))

    def test_the_key_usage_must_be_the_roles(self):
        sans = [x509.UniformResourceIdentifier("tidegate://site/bank-1")]
        client, server = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
        for usages in ([], [server], [client, server]):
            refused(Reason.UNAUTHENTICATED, pki.role_of, hand_made(sans, usages))

    def test_a_site_may_hold_no_host_name(self):
        sans = [x509.UniformResourceIdentifier("tidegate://site/a"), x509.DNSName("localhost")]
        refused(Reason.UNAUTHENTICATED, pki.role_of, hand_made(sans))

    @pytest.mark.parametrize("data", [b"", b"x", b"-----BEGIN CERTIFICATE-----\n", b"\x30\x03\x02"])
    def test_what_is_no_certificate_is_malformed(self, data):
        refused(Reason.MALFORMED, pki.role_of, data)


class TestIssuing:
    def test_the_csr_says_nothing_but_the_key(self):
        key = pki.make_key()
        asked = x509.UniformResourceIdentifier("tidegate://operator/alice")
        csr = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator alice")]))
            .add_extension(x509.SubjectAlternativeName([asked]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
            .public_bytes(serialization.Encoding.DER)
        )
        pem = pki.issue_site_cert_from_csr(CA, csr, "bank-1", TODAY)
        assert pki.role_of(pem) == ("site", "bank-1")
        assert pki.certificate_spki(pem) == pki.spki_der(key)
        constraints = pki.load_certificate(pem).extensions.get_extension_for_class(
            x509.BasicConstraints
        )
        assert not constraints.value.ca
        assert b"alice" not in pki.load_certificate(pem).public_bytes(serialization.Encoding.DER)

    @pytest.mark.parametrize(
        "key",
        [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)],
    )
    def test_other_kinds_of_key_are_refused(self, key):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
        csr = x509.CertificateSigningRequestBuilder().subject_name(subject)
        der = csr.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
        refused(Reason.MALFORMED, pki.check_csr, der)

    def test_a_csr_must_be_signed_by_its_own_key(self):
        mine, other = (pki.make_csr(pki.make_key(), "bank-1") for _ in range(2))
        spki = pki.spki_der(pki.make_key())
        swapped = mine.replace(pki.public_spki(x509.load_der_x509_csr(mine).public_key()), spki)
        assert swapped != mine != other
        refused(Reason.BAD_SIGNATURE, pki.check_csr, swapped)

    def test_csr_sizes_and_shapes(self):
        refused(Reason.TOO_LARGE, pki.check_csr, bytes(8193))
        for bad in (b"", b"\x30", pki.make_csr(pki.make_key(), "a")[:-3]):
            refused(Reason.MALFORMED, pki.check_csr, bad)

    @pytest.mark.parametrize("name", ["", "Bank", "a b", "-a", "a/b", "a" * 64, "a\n"])
    def test_bad_names_are_refused(self, name):
        with pytest.raises(UsageError, match="name"):
            pki.issue_operator_cert(CA, pki.make_key().public_key(), name, TODAY)

    @pytest.mark.parametrize("hosts", [[], [""], ["a b"], ["*.example"], ["x" * 254], ["a..b"]])
    def test_bad_hosts_are_refused(self, hosts):
        with pytest.raises(UsageError, match="host"):
            pki.issue_server_cert(CA, pki.make_key().public_key(), hosts, "hub", TODAY)

    def test_certificates_hold_for_the_asked_time(self):
        _, pem = site(validity=pki.Validity(1_900_000_000, 3600))
        certificate = pki.load_certificate(pem)
        assert certificate.not_valid_after_utc.timestamp() == 1_900_003_600
        assert certificate.not_valid_before_utc.timestamp() == 1_900_000_000 - pki.BACKDATE_S

    def test_a_ca_outlives_its_members_by_default(self):
        _, pem = site(validity=pki.Validity(1_900_000_000))
        member_s = pki.load_certificate(pem).not_valid_after_utc.timestamp()
        ca = pki.make_ca("test", pki.Validity(1_900_000_000)).certificate
        assert member_s == 1_900_000_000 + 365 * pki.DAY_S
        assert ca.not_valid_after_utc.timestamp() == 1_900_000_000 + 3650 * pki.DAY_S

    def test_authority_survives_its_files(self):
        again = pki.load_authority(pki.key_pem(CA.key), CA.certificate_pem())
        assert again.certificate == CA.certificate
        other = pki.make_ca("other", TODAY)
        with pytest.raises(UsageError, match="not a pair"):
            pki.load_authority(pki.key_pem(other.key), CA.certificate_pem())
        with pytest.raises(UsageError, match=r"ca\.pem"):
            pki.load_authority(pki.key_pem(CA.key), b"nothing")
        assert "key" not in repr(CA)


def listen(ca_pem, server_key, server_pem):
    """Start a TLS server that wants a client certificate and answers with the caller's role."""

    def whoami(_request, context):
        (pem,) = context.auth_context()["x509_pem_cert"]
        return "/".join(pki.role_of(pem)).encode()

    handler = grpc.unary_unary_rpc_method_handler(whoami)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Who", {"Ami": handler}),)
    )
    credentials = grpc.ssl_server_credentials(
        [(pki.key_pem(server_key), server_pem)], ca_pem, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, port


def ask(port, key, pem, ca_pem=None, host="127.0.0.1"):
    credentials = grpc.ssl_channel_credentials(
        ca_pem or CA.certificate_pem(), pki.key_pem(key) if key else None, pem
    )
    with grpc.secure_channel(f"{host}:{port}", credentials) as channel:
        return channel.unary_unary("/test.Who/Ami")(b"", timeout=10)


@pytest.fixture(scope="module")
def port():
    key = pki.make_key()
    hosts = ["127.0.0.1", "localhost"]
    pem = pki.issue_server_cert(CA, key.public_key(), hosts, "hub", TODAY)
    server, port = listen(CA.certificate_pem(), key, pem)
    yield port
    server.stop(None).wait()


class TestHandshake:
    """gRPC's BoringSSL takes our certificates, and no others."""

    def test_site_and_operator_are_told_apart(self, port):
        assert ask(port, *site()) == b"site/bank-1"
        assert ask(port, *operator()) == b"operator/alice"

    def test_names_and_addresses_match(self, port):
        assert ask(port, *site(), host="localhost") == b"site/bank-1"

    def refuse(self, port, *args, **kwargs):
        with pytest.raises(grpc.RpcError) as caught:
            ask(port, *args, **kwargs)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    def test_no_certificate(self, port):
        self.refuse(port, None, None)

    def test_certificate_of_another_ca(self, port):
        self.refuse(port, *site(pki.make_ca("other", TODAY)))

    def test_a_ca_with_our_name_but_another_key(self, port):
        self.refuse(port, *site(pki.make_ca("test", TODAY)))

    def test_expired_certificate(self, port):
        past = pki.Validity(NOW_S - 7200, 3600)
        self.refuse(port, *site(validity=past))

    def test_server_certificate_as_client(self, port):
        key = pki.make_key()
        pem = pki.issue_server_cert(CA, key.public_key(), ["127.0.0.1"], "hub", TODAY)
        self.refuse(port, key, pem)

    def test_site_certificate_cannot_issue_certificates(self, port):
        site_key, site_pem = site()
        rogue = pki.Authority(site_key, pki.load_certificate(site_pem))
        key, pem = site(rogue, "bank-2")
        self.refuse(port, key, pem + site_pem)

    def test_client_refuses_a_server_of_another_ca(self, port):
        self.refuse(port, *site(), ca_pem=pki.make_ca("other", TODAY).certificate_pem())

    def test_client_refuses_a_site_that_plays_the_aggregator(self):
        key, pem = site()
        server, port = listen(CA.certificate_pem(), key, pem)
        self.refuse(port, *site())
        server.stop(None).wait()

    def test_client_refuses_a_server_for_another_host(self):
        key = pki.make_key()
        pem = pki.issue_server_cert(CA, key.public_key(), ["hub.example"], "hub", TODAY)
        server, port = listen(CA.certificate_pem(), key, pem)
        self.refuse(port, *site())
        server.stop(None).wait()
