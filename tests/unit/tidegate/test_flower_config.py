import pytest
from hypothesis import given

from privacy.errors import PeerError, Reason, UsageError
from tests.support.wire_messages import settings
from tidegate import flower_config
from tidegate.flower_config import MessageConfig, decode, encode


@given(settings)
def test_settings_come_back_with_their_kinds(values):
    raw = encode(MessageConfig(values))
    found = decode(raw).values
    assert found == values
    assert all(type(found[name]) is type(value) for name, value in values.items())
    assert encode(MessageConfig(dict(reversed(values.items())))) == raw


def test_the_canonical_form_is_fixed():
    values = {"lr": 0.5, "server-round": 3, "on": True, "key": b"\xff", "names": ["a", "b"]}
    assert encode(MessageConfig(values, "model", "settings")) == (
        b'{"arrays":"model","config":"settings","values":{"key":{"hex":"ff"},"lr":0.5,'
        b'"names":["a","b"],"on":true,"server-round":3}}'
    )


@pytest.mark.parametrize(
    "values",
    [
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": None},
        {"a": {"b": 1}},
        {"a": [1, 2.0]},
        {"a": [True, 1]},
        {"a": [[1]]},
        {"a": 1 << 63},
        {"": 1},
        {"a" * 257: 1},
        {1: 1},
        {"a": "\ud800"},
        {"a": "x" * flower_config.MAX_BYTES},
    ],
)
def test_what_cannot_be_sent_is_refused_where_it_is_made(values):
    with pytest.raises(UsageError, match="settings of a Flower message"):
        encode(MessageConfig(values))


def test_model_and_settings_need_two_names():
    with pytest.raises(UsageError, match="differ"):
        encode(MessageConfig({}, "x", "x"))


GOOD = '{"arrays":"arrays","config":"config","values":%s}'


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"arrays":"arrays","config":"config"}',
        GOOD % "[]",
        GOOD % "{} ",
        GOOD % '{"a": 1}',
        GOOD % '{"b":1,"a":1}',
        GOOD % '{"a":1,"a":1}',
        GOOD % '{"a":null}',
        GOOD % '{"a":NaN}',
        GOOD % '{"a":Infinity}',
        GOOD % '{"a":1e999}',
        GOOD % '{"a":{"hex":"0"}}',
        GOOD % '{"a":{"hex":1}}',
        GOOD % '{"a":{"hex":"AA"}}',
        GOOD % '{"a":{"x":"aa"}}',
        GOOD % '{"a":[1,"x"]}',
        GOOD % '{"a":[[1]]}',
        GOOD % '{"a":99999999999999999999}',
        GOOD % '{"a":"\\ud800"}',
        GOOD % ('{"a":' + "[" * 30_000 + "]" * 30_000 + "}"),
        '{"arrays":"x","config":"x","values":{}}',
        '{"arrays":1,"config":"config","values":{}}',
        '{"arrays":"arrays","config":"config","values":{},"more":1}',
    ],
)
def test_what_is_not_canonical_is_refused(raw):
    with pytest.raises(PeerError, match="in canonical JSON") as caught:
        decode(raw.encode(), "train_request.config")
    assert caught.value.reason is Reason.MALFORMED


def test_too_many_bytes_are_refused_unread():
    with pytest.raises(PeerError) as caught:
        decode(b" " * (flower_config.MAX_BYTES + 1))
    assert caught.value.reason is Reason.TOO_LARGE
