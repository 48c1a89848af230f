"""``tidegate init``, ``up`` and ``consortium seal``: make a consortium and start its aggregator."""

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from aggregator.cli.connection import CLIENT_FILE, OperatorFolder, operator_api
from aggregator.cli.output import Session
from privacy.errors import UsageError
from privacy.secagg.keys import P256, Suite, suite_named
from privacy.secagg.rules import DEFAULT_DROPOUT_PERCENT
from tidegate import manifest, pki
from tidegate.convert import site_record_from_wire
from tidegate.v1 import operator_pb2

consortium_app = typer.Typer(no_args_is_help=True, help="Seal what the sites sign up to.")

MAX_PORT = 65_535

AGGREGATOR_TOML = """\
# Tidegate aggregator; unknown keys are errors. Port 0 takes a free one.
consortium_id = "{name}"
host = "{host}"
site_port = {ports.site}
enrolment_port = {ports.enrolment}
operator_port = {ports.operator}
suite = "{suite}"
"""

CLIENT_TOML = """\
# How this operator reaches the aggregator.
name = "operator"
suite = "{suite}"
{where}
"""


SuiteName = Annotated[
    str,
    typer.Option(metavar="NAME", help="Algorithms of all sites; they stand above."),
]


@dataclass(frozen=True)
class Ports:
    """The aggregator's three listeners; 0 takes a free port."""

    site: int = 7443
    enrolment: int = 7444
    operator: int = 7445


def make_consortium(folder: Path, name: str, host: str, ports: Ports, suite: Suite = P256) -> str:
    """Make operator/ and aggregator/ in a new folder: keys, CA, certificates, configuration.

    Returns:
        The fingerprint of the operator key, hex.

    Raises:
        UsageError: There is a consortium in the folder: keys are never overwritten.
    """
    operator, aggregator = folder / "operator", folder / "aggregator"
    if operator.exists() or aggregator.exists():
        raise UsageError(f"{folder} holds a consortium: name another, keys are never overwritten")
    validity = pki.Validity(now_s=time.time())
    authority = pki.make_ca(name, validity)
    operator_key, operator_tls, server_tls = pki.make_key(), pki.make_key(), pki.make_key()
    operator_spki = pki.spki_der(operator_key)
    files = {
        operator / "operator.key": pki.key_pem(operator_key),
        operator / "operator.spki": operator_spki,
        operator / "tls.key": pki.key_pem(operator_tls),
        operator / "tls.pem": pki.issue_operator_cert(
            authority, operator_tls.public_key(), "operator", validity
        ),
        operator / "ca.pem": authority.certificate_pem(),
        operator / CLIENT_FILE: CLIENT_TOML.format(
            where=_where(host, ports), suite=suite.name
        ).encode(),
        aggregator / "ca.key": pki.key_pem(authority.key),
        aggregator / "ca.pem": authority.certificate_pem(),
        aggregator / "operator.spki": operator_spki,
        aggregator / "tls.key": pki.key_pem(server_tls),
        aggregator / "tls.pem": pki.issue_server_cert(
            authority, server_tls.public_key(), [host], "aggregator", validity
        ),
        aggregator / "aggregator.toml": AGGREGATOR_TOML.format(
            name=name, host=host, ports=ports, suite=suite.name
        ).encode(),
    }
    # Only now: a name or host that is refused leaves no half-made consortium behind.
    for made in (operator, aggregator):
        made.mkdir(parents=True, mode=0o700)
    for path, data in files.items():
        pki.write_private(path, data)
    return pki.fingerprint(operator_spki).hex()


def seal_manifest(
    folder: OperatorFolder,
    colluders: int,
    min_survivors: int,
    max_sites_per_person: int = 2,
    dropout_percent: int = DEFAULT_DROPOUT_PERCENT,
) -> manifest.Manifest:
    """Sign the manifest over all enrolled sites with the operator key and hand it out."""
    signer = pki.EcdsaSigner(pki.load_key(pki.read_private(folder.signing_key_file())))
    with operator_api(folder) as api:
        status = api.GetStatus(operator_pb2.GetStatusRequest())
        listed = api.ListSites(operator_pb2.ListSitesRequest()).sites
        sites = [site_record_from_wire(site) for site in listed]
        sealed = manifest.Manifest(
            consortium_id=status.consortium_id,
            roster_epoch=1,
            colluders=colluders,
            min_survivors=min_survivors,
            dropout_percent=dropout_percent,
            members=tuple(
                manifest.make_member(site.site_id, site.node_fingerprint, site.signing_spki)
                for site in sorted(sites, key=lambda site: site.site_id)
                if site.state in {"enrolled", "connected"}
            ),
            suite=folder.suite,
            max_sites_per_person=max_sites_per_person,
        )
        raw, signature = manifest.seal(sealed, signer.sign)
        api.PutManifest(operator_pb2.PutManifestRequest(manifest=raw, signature=signature))
    return sealed


def init(  # noqa: PLR0913, PLR0917 - one an option
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="Folder to make; operator/ and aggregator/ in it.")
    ],
    name: Annotated[str, typer.Option(help="Consortium id: a-z, 0-9 and '-'.")] = "consortium",
    host: Annotated[str, typer.Option(help="Name or address sites dial.")] = "127.0.0.1",
    site_port: Annotated[
        int, typer.Option(max=MAX_PORT, min=0, help="Port for sites (mTLS); 0: a free one.")
    ] = 7443,
    enrolment_port: Annotated[
        int, typer.Option(max=MAX_PORT, min=0, help="Port for enrolment (token).")
    ] = 7444,
    operator_port: Annotated[
        int, typer.Option(max=MAX_PORT, min=0, help="Port for operators (mTLS).")
    ] = 7445,
    suite: SuiteName = P256.name,
) -> None:
    """Make the operator key, the CA and the aggregator's folder.

    The operator key stays in operator/: never copy it to the aggregator's machine.

    Suites: P256_SHA256_AES256, X25519_ED25519_SHA256_AES256, and
    MLKEM768_X25519_ED25519_SHA256_AES256, whose share transport is post-quantum.
    """
    session: Session = context.obj
    ports = Ports(site_port, enrolment_port, operator_port)
    fingerprint = make_consortium(folder, name, host, ports, suite_named(suite))
    session.show(
        {
            "operator": str(folder / "operator"),
            "aggregator": str(folder / "aggregator"),
            "operator_fingerprint": fingerprint,
        },
        f"made {folder / 'operator'} (keep its key off the aggregator's machine)"
        f" and {folder / 'aggregator'}\noperator key sha256:{fingerprint}",
    )


def up(
    config: Annotated[Path, typer.Option(help="The aggregator's aggregator.toml.")],
) -> None:
    """Start the aggregator in the foreground; Ctrl-C ends it cleanly."""
    if not config.is_file():
        raise UsageError(f"{config} does not exist: make one with `tidegate init`")
    sys.stdout.flush()
    program = [sys.executable, "-P", "-m", "aggregator", "--config", str(config)]
    os.execv(sys.executable, program)  # noqa: S606 - our own module, no shell


@consortium_app.command()
def seal(
    context: typer.Context,
    colluders: Annotated[
        int, typer.Option(help="c: how many sites may side with a hostile aggregator.")
    ] = 1,
    min_survivors: Annotated[
        int, typer.Option(help="N_min: the fewest sites whose sum is ever opened.")
    ] = 4,
    sites_per_person: Annotated[
        int,
        typer.Option(
            help="k_max: in how many sites one person's data may lie; epsilon is stated for it too."
        ),
    ] = 2,
    dropout_percent: Annotated[
        int,
        typer.Option(help="Sites that may drop out of a round; above 20 it costs large cohorts."),
    ] = DEFAULT_DROPOUT_PERCENT,
    suite: Annotated[
        str, typer.Option(help="Another suite than the operator folder's; keys must fit it.")
    ] = "",
) -> None:
    """Sign the manifest over all enrolled sites with the operator key; the sites pin it."""
    session: Session = context.obj
    folder = session.folder()
    if suite:
        folder = replace(folder, suite=suite_named(suite).name)
    sealed = seal_manifest(folder, colluders, min_survivors, sites_per_person, dropout_percent)
    members = [member.site_id for member in sealed.members]
    session.show(
        {
            "manifest_hash": sealed.hash().hex(),
            "sites": members,
            "suite": sealed.suite,
            "colluders": colluders,
            "min_survivors": min_survivors,
            "max_sites_per_person": sites_per_person,
            "dropout_percent": dropout_percent,
        },
        f"sealed {len(members)} sites, c={colluders}, N_min={min_survivors}, a person in at most"
        f" {sites_per_person} of them:"
        f" manifest sha256:{sealed.hash().hex()}",
    )


def _where(host: str, ports: Ports) -> str:
    """Say in client.toml how the operator finds its listener."""
    if 0 in {ports.site, ports.enrolment, ports.operator}:
        return 'addresses_file = "../aggregator/addresses.json"'
    return f'address = "{host}:{ports.operator}"'
