import base64
import dataclasses
import json

import pytest

from privacy.errors import UsageError
from tidegate import tokens

TOKEN = tokens.EnrolmentToken(
    site_id="bank-1",
    secret="s" * 43,
    enrolment="127.0.0.1:4001",
    sites="hub.example:4002",
    operator_fingerprint="ab" * 32,
    ca_pem="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    expires_at_s=1_900_000_000,
)


def pack(fields):
    raw = json.dumps(fields).encode()
    return "tg1." + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_a_token_is_one_line_and_reads_back():
    text = tokens.encode(TOKEN)
    assert text.startswith("tg1.")
    assert text.isprintable()
    assert " " not in text
    assert tokens.decode(text + "\n") == TOKEN


def test_secrets_differ_and_are_kept_as_hashes():
    first, second = tokens.new_secret(), tokens.new_secret()
    assert first != second
    assert tokens.hash_secret(first) != tokens.hash_secret(second)
    tokens.encode(dataclasses.replace(TOKEN, secret=first))


@pytest.mark.parametrize("cut", range(0, 400, 37))
def test_a_token_cut_short_is_refused_without_repeating_it(cut):
    text = tokens.encode(TOKEN)[:cut]
    with pytest.raises(UsageError) as caught:
        tokens.decode(text)
    assert "s" * 20 not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"site_id": "../etc"},
        {"site_id": 7},
        {"secret": "short"},
        {"secret": "s" * 31 + "!"},
        {"enrolment": "127.0.0.1"},
        {"enrolment": "evil host:1"},
        {"sites": "a:1\nb:2"},
        {"operator_fingerprint": "AB" * 32},
        {"ca_pem": "no"},
        {"expires_at_s": "soon"},
        {"expires_at_s": True},
        {"expires_at_s": -1},
        {"extra": 1},
    ],
)
def test_bad_fields_are_refused(change):
    with pytest.raises(UsageError):
        tokens.decode(pack({**dataclasses.asdict(TOKEN), **change}))


@pytest.mark.parametrize("body", ["", "!!!!", "AAAA", "W10", "é"])
def test_bad_bodies_are_refused(body):
    with pytest.raises(UsageError):
        tokens.decode("tg1." + body)


def test_a_missing_field_a_list_and_a_giant_are_refused():
    fields = dataclasses.asdict(TOKEN)
    del fields["secret"]
    for text in (pack(fields), pack([1]), "tg1." + "A" * 20_000, "tg2." + "A" * 40):
        with pytest.raises(UsageError):
            tokens.decode(text)


def test_no_secret_in_repr():
    assert TOKEN.secret not in repr(TOKEN)
