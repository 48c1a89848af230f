"""``tidegate site``: invite, list and revoke sites."""

from pathlib import Path
from typing import Annotated

import typer

from aggregator.cli.connection import OperatorFolder, operator_api
from aggregator.cli.output import Session, as_dict, moment, table_of
from privacy.errors import UsageError
from tidegate.convert import site_record_from_wire
from tidegate.pki import fingerprint, write_private
from tidegate.tokens import EnrolmentToken, encode
from tidegate.v1 import operator_pb2

app = typer.Typer(no_args_is_help=True, help="Invite, list and revoke sites.")

LONGEST_TOKEN_S = 30 * 86_400

SiteId = Annotated[str, typer.Argument(help="The site's id, for example bank-1.")]


def make_token(folder: OperatorFolder, site_id: str, out: Path, valid_s: int) -> int:
    """Make a one-time enrolment token and write it to a private file.

    Returns:
        When it expires, Unix seconds.

    Raises:
        UsageError: The file exists.
    """
    if out.exists():
        raise UsageError(f"{out} exists: name another file, a token is never overwritten")
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no folder: a token made now would be lost")
    with operator_api(folder) as api:
        made = api.CreateToken(operator_pb2.CreateTokenRequest(site_id=site_id, valid_s=valid_s))
    text = encode(
        EnrolmentToken(
            site_id=site_id,
            secret=made.secret,
            enrolment=made.enrolment_address,
            sites=made.site_address,
            operator_fingerprint=fingerprint(folder.operator_spki()).hex(),
            ca_pem=made.ca_pem.decode("ascii"),
            expires_at_s=made.expires_at_s,
            suite=folder.suite,
        )
    )
    write_private(out, f"{text}\n".encode("ascii"))
    return int(made.expires_at_s)


@app.command()
def token(
    context: typer.Context,
    site_id: SiteId,
    out: Annotated[Path, typer.Option(help="File for the token, made with mode 0600.")],
    valid_s: Annotated[
        int, typer.Option(min=1, max=LONGEST_TOKEN_S, help="Seconds until the token expires.")
    ] = 3600,
) -> None:
    """Make a one-time enrolment token for a site.

    Hand the file over on a channel you trust: who holds it first, enrols as the site.
    """
    session: Session = context.obj
    expires_at_s = make_token(session.folder(), site_id, out, valid_s)
    session.show(
        {"site_id": site_id, "file": str(out), "expires_at_s": expires_at_s},
        f"token for {site_id} written to {out}, good once until {moment(expires_at_s)} UTC",
    )


@app.command("list")
def list_sites(context: typer.Context) -> None:
    """List the sites and their state."""
    session: Session = context.obj
    with operator_api(session.folder()) as api:
        answer = api.ListSites(operator_pb2.ListSitesRequest())
    sites = [site_record_from_wire(site) for site in answer.sites]
    rows = [
        (
            site.site_id,
            site.state,
            site.device or "-",
            fingerprint(site.signing_spki).hex()[:16] if site.signing_spki else "-",
            str(site.bundles),
            moment(site.last_seen_s),
        )
        for site in sites
    ]
    columns = ("site", "state", "device", "signing key", "#bundles", "last seen (UTC)")
    session.show([as_dict(site) for site in sites], table_of("sites", columns, rows))


@app.command()
def revoke(
    context: typer.Context,
    site_id: SiteId,
    why: Annotated[str, typer.Option(help="The reason, for the record.")],
) -> None:
    """Revoke a site: its session ends at once and its certificate is refused from now on."""
    session: Session = context.obj
    with operator_api(session.folder()) as api:
        api.RevokeSite(operator_pb2.RevokeSiteRequest(site_id=site_id, why=why))
    session.show({"site_id": site_id, "state": "revoked"}, f"{site_id} is revoked: {why}")
