import dataclasses
import json

import pytest

from privacy.errors import PeerError, Reason, UsageError
from tidegate import keys, manifest
from tidegate.manifest import Manifest, ManifestLimits, Member

OPERATOR = keys.EcdsaSigner(keys.make_key())
SPKIS = [keys.spki_der(keys.make_key()) for _ in range(10)]
MEMBERS = tuple(
    manifest.make_member(f"bank-{n}", keys.fingerprint(SPKIS[5 + n]), SPKIS[n]) for n in range(5)
)
GOOD = Manifest("demo", 1, colluders=1, min_survivors=4, members=MEMBERS)


def change(**fields):
    return dataclasses.replace(GOOD, **fields)


def with_member(number, **fields):
    members = list(MEMBERS)
    members[number] = dataclasses.replace(members[number], **fields)
    return change(members=tuple(members))


def open_raw(raw):
    return manifest.parse_and_verify(raw, OPERATOR.sign(manifest.sign_bytes(raw)), OPERATOR.spki())


def test_seal_and_open():
    raw, signature = manifest.seal(GOOD, OPERATOR.sign)
    opened = manifest.parse_and_verify(raw, signature, OPERATOR.spki())
    assert opened == GOOD
    assert opened.hash() == GOOD.hash()
    assert opened.member("bank-3") == MEMBERS[3]
    assert opened.member("bank-9") is None
    assert opened.pinned() == {keys.fingerprint(spki): spki for spki in SPKIS[:5]}


def test_canonical_bytes_are_compact_sorted_ascii():
    raw = GOOD.canonical()
    fields = json.loads(raw)
    assert raw == json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")
    assert fields["version"] == 1
    assert set(fields["members"][0]) == {"site_id", "node_fingerprint", "signing_spki"}


@pytest.mark.parametrize("sites", [1, 5])
def test_a_person_may_be_in_one_site_or_in_all(sites):
    assert open_raw(change(max_sites_per_person=sites).canonical()).max_sites_per_person == sites


@pytest.mark.parametrize("sites", [0, 6, -1, 2.0, True, None])
def test_a_person_in_no_site_or_in_more_than_there_are_is_refused(sites):
    with pytest.raises(PeerError, match=r"max_sites_per_person must lie in 1\.\.5") as caught:
        open_raw(change(max_sites_per_person=sites).canonical())
    assert caught.value.reason is Reason.MALFORMED


def test_another_key_a_changed_byte_and_a_bare_signature_are_refused():
    raw, signature = manifest.seal(GOOD, OPERATOR.sign)
    other = keys.EcdsaSigner(keys.make_key())
    for args in (
        (raw, signature, other.spki()),
        (raw.replace(b'"min_survivors":4', b'"min_survivors":3'), signature, OPERATOR.spki()),
        (raw, OPERATOR.sign(raw), OPERATOR.spki()),
    ):
        with pytest.raises(PeerError) as caught:
            manifest.parse_and_verify(*args)
        assert caught.value.reason is Reason.BAD_SIGNATURE


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (change(colluders=0), "colluders"),
        (change(colluders=True), "colluders"),
        (change(min_survivors=1), "greater than colluders"),
        (change(min_survivors=2), "one honest site"),
        (change(colluders=3), "one honest site"),
        (change(min_survivors=6), "only 5 members"),
        (change(version=2), "version"),
        (change(dropout_percent=0), "dropout_percent"),
        (change(dropout_percent=34), "dropout_percent"),
        (change(dropout_percent=20.0), "dropout_percent"),
        (change(suite="NULL"), "suite"),
        (change(suite="SM2_SM3_SM4"), "suite"),
        (change(roster_epoch=0), "roster_epoch"),
        (change(consortium_id="Big Bank"), "consortium_id"),
        (change(limits=ManifestLimits(max_sites=1001)), "max_sites"),
        (change(limits=ManifestLimits(max_sites=4)), "max_sites"),
        (change(limits=ManifestLimits(max_message_bytes=1)), "max_message_bytes"),
        (change(limits=ManifestLimits(max_vector_length=0)), "max_vector_length"),
        (change(members=MEMBERS[::-1]), "sorted"),
        (change(members=(*MEMBERS, MEMBERS[-1])), "sorted"),
        (with_member(1, signing_spki=MEMBERS[0].signing_spki), "one key serves twice"),
        (with_member(1, node_fingerprint=MEMBERS[0].node_fingerprint), "one key serves twice"),
        (
            with_member(1, node_fingerprint=MEMBERS[1].fingerprint().hex()),
            "one key serves twice",
        ),
        (
            with_member(1, node_fingerprint=MEMBERS[0].fingerprint().hex()),
            "one key serves twice",
        ),
        (with_member(0, site_id="Bank"), "site_id"),
        (with_member(0, node_fingerprint="AB" * 32), "node_fingerprint"),
        (with_member(0, signing_spki="00"), "no P-256 key"),
        (with_member(0, signing_spki="zz"), "hex"),
    ],
)
def test_rules_hold_for_sealing_and_for_opening(bad, rule):
    with pytest.raises(UsageError, match=rule):
        manifest.seal(bad, OPERATOR.sign)
    with pytest.raises(PeerError, match=rule) as caught:
        open_raw(bad.canonical())
    assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("field", ["hidden", "members", "colluders"])
def test_unknown_and_missing_fields_are_refused(field):
    fields = json.loads(GOOD.canonical())
    if field in fields:
        del fields[field]
    else:
        fields[field] = 1
    raw = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(PeerError, match=field):
        open_raw(raw)


def test_unknown_fields_of_members_are_refused():
    fields = json.loads(GOOD.canonical())
    fields["members"][2]["proxy"] = "x"
    with pytest.raises(PeerError, match="proxy"):
        open_raw(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b"NaN",
        GOOD.canonical() + b" ",
        json.dumps(json.loads(GOOD.canonical()), sort_keys=True).encode(),
        GOOD.canonical().replace(b'"version":1', b'"version":1,"version":1'),
        GOOD.canonical().replace(b'"version":1', b'"version":1.0'),
        GOOD.canonical().replace(b'"colluders":1', b'"colluders":"1"'),
        GOOD.canonical().replace(b'"suite":"', b'"suite":["').replace(b'AES256"', b'AES256"]'),
    ],
)  # fmt: skip
def test_one_manifest_has_one_encoding(raw):
    with pytest.raises(PeerError) as caught:
        open_raw(raw)
    assert caught.value.reason is Reason.MALFORMED


def test_a_giant_is_refused_before_its_signature_is_looked_at():
    with pytest.raises(PeerError) as caught:
        manifest.parse_and_verify(bytes(manifest.MAX_BYTES + 1), b"", b"")
    assert caught.value.reason is Reason.TOO_LARGE


def test_two_hundred_members_fit():
    members = tuple(
        Member(f"site-{n:03}", f"{n:064x}", keys.spki_der(keys.make_key()).hex())
        for n in range(200)
    )
    big = change(members=members)
    raw, signature = manifest.seal(big, OPERATOR.sign)
    assert manifest.parse_and_verify(raw, signature, OPERATOR.spki()) == big
