"""The keys, certificates and manifest of a consortium whose aggregator is hostile.

Made once for all tests; site signing keys derive from names (``secagg_harness.signer``).
"""

import hashlib
import time
from dataclasses import dataclass
from functools import lru_cache

from edge_node.store_schema import make_private_folder
from privacy.secagg.keys import P256
from tests.support.secagg_harness import signer
from tidegate import keys, pki
from tidegate.manifest import Manifest, make_member

CONSORTIUM = "market"
VICTIM = "bank-1"


@dataclass(frozen=True)
class Identities:
    """The keys of one consortium; made once, for keys are not what these tests are about."""

    authority: pki.Authority
    operator: keys.EcdsaSigner
    server: tuple[bytes, bytes]
    victim_tls_key: bytes
    victim_certificate: bytes
    victim_node: bytes


@lru_cache(maxsize=1)
def identities():
    validity = pki.Validity(time.time())
    authority = pki.make_ca(CONSORTIUM, validity)
    server_key, tls_key = pki.make_key(), pki.make_key()
    server = pki.issue_server_cert(
        authority, server_key.public_key(), ["127.0.0.1"], "aggregator", validity
    )
    csr = pki.make_csr(tls_key, VICTIM)
    return Identities(
        authority=authority,
        operator=keys.EcdsaSigner(pki.make_key()),
        server=(pki.key_pem(server_key), server),
        victim_tls_key=pki.key_pem(tls_key),
        victim_certificate=pki.issue_site_cert_from_csr(authority, csr, VICTIM, validity),
        victim_node=pki.fingerprint(pki.spki_der(tls_key)),
    )


def make_manifest(names, colluders, min_survivors):
    members = tuple(
        make_member(name, _node(name), signer(P256.name, name).spki) for name in sorted(names)
    )
    return Manifest(CONSORTIUM, 1, colluders, min_survivors, members)


def _node(name):
    if name == VICTIM:
        return identities().victim_node
    return hashlib.sha256(f"tls {name}".encode()).digest()


def write_credentials(config, address):
    """Leave in the victim's folder what an enrolment leaves."""
    made = identities()
    make_private_folder(config.folder)
    make_private_folder(config.keys)
    files = {
        "signing.key": pki.key_pem(signer(P256.name, VICTIM)._key),
        "tls.key": made.victim_tls_key,
        "tls.pem": made.victim_certificate,
        "ca.pem": made.authority.certificate_pem(),
        "operator.spki": made.operator.spki(),
        "aggregator.json": f'{{"sites": "{address}", "enrolment": "{address}"}}'.encode(),
    }
    for name, data in files.items():
        keys.write_private(config.keys / name, data)
