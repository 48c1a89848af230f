"""Whatever bytes arrive: a valid value, or a ``PeerError`` that names the field; nothing else."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.wire_messages import SENDER, aggregator_messages, site_messages
from tests.support.wire_receivers import RECEIVERS, receive
from tidegate import convert
from tidegate.v1 import federation_pb2

SLOW_TO_DRAW = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@SLOW_TO_DRAW
@given(site_messages)
def test_site_messages_round_trip(message):
    raw = convert.site_message_to_wire(message).SerializeToString()
    parsed = federation_pb2.SessionRequest.FromString(raw)
    assert convert.site_message_from_wire(parsed, SENDER) == message


@SLOW_TO_DRAW
@given(aggregator_messages)
def test_aggregator_messages_round_trip(message):
    raw = convert.aggregator_message_to_wire(message).SerializeToString()
    parsed = federation_pb2.SessionResponse.FromString(raw)
    assert convert.aggregator_message_from_wire(parsed) == message


@pytest.mark.parametrize(("kind", "take"), RECEIVERS)
@settings(max_examples=60, deadline=None)
@given(raw=st.binary(max_size=200))
def test_random_bytes_give_peer_errors_only(kind, take, raw):
    receive(kind, take, raw)


def random_fields(descriptor, data, depth=0):
    """Fill a protobuf message with random values of the right types: the hard part of a fuzz."""
    field_values = {
        "int": st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1)),
        "float": st.floats(allow_nan=True, allow_infinity=True),
        "str": st.text(max_size=8),
        "bytes": st.one_of(
            st.sampled_from([bytes(size) for size in (0, 16, 32, 33, 65, 72, 82)]),
            st.binary(max_size=8),
        ),
        "bool": st.booleans(),
    }
    kinds = {1: "float", 8: "bool", 9: "str", 12: "bytes"}
    values = {}
    oneofs = {}
    for field in descriptor.fields:
        if field.containing_oneof is not None:
            oneofs.setdefault(field.containing_oneof.name, []).append(field)
    skipped = set()
    for fields in oneofs.values():
        chosen = data.draw(st.sampled_from(fields))
        skipped |= {field.name for field in fields if field is not chosen}
    for field in descriptor.fields:
        if field.name in skipped or (field.containing_oneof is None and data.draw(st.booleans())):
            continue
        size = data.draw(st.integers(0, 3)) if field.is_repeated else 1
        made = [
            random_fields(field.message_type, data, depth + 1)
            if field.message_type
            else data.draw(field_values[kinds.get(field.type, "int")])
            for _ in range(size)
        ]
        values[field.name] = made if field.is_repeated else made[0]
    return values


@pytest.mark.parametrize(("kind", "take"), RECEIVERS)
@settings(
    max_examples=80, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(data=st.data())
def test_random_fields_give_peer_errors_only(kind, take, data):
    values = random_fields(kind.DESCRIPTOR, data)
    receive(kind, take, kind(**values).SerializeToString())


def mutate(raw, data):
    """Change, cut or lengthen a few places of a valid frame."""
    frame = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, max(0, len(frame) - 1)))
        how = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if how == "set" and frame:
            frame[where] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del frame[where : where + data.draw(st.integers(1, 40))]
        else:
            frame[where:where] = data.draw(st.binary(min_size=1, max_size=5))
    return bytes(frame)


@SLOW_TO_DRAW
@given(site_messages, st.data())
def test_a_mutated_site_message_is_valid_or_refused(message, data):
    raw = mutate(convert.site_message_to_wire(message).SerializeToString(), data)
    value = receive(*RECEIVERS[0], raw)
    if value is not None:
        again = convert.site_message_to_wire(value)
        assert convert.site_message_from_wire(again, SENDER) == value


@SLOW_TO_DRAW
@given(aggregator_messages, st.data())
def test_a_mutated_aggregator_message_is_valid_or_refused(message, data):
    raw = mutate(convert.aggregator_message_to_wire(message).SerializeToString(), data)
    value = receive(*RECEIVERS[1], raw)
    if value is not None:
        again = convert.aggregator_message_to_wire(value)
        assert convert.aggregator_message_from_wire(again) == value


@given(st.text(max_size=2000))
def test_what_is_made_printable_is_accepted(text):
    assert convert.bounds.text(convert.printable(text), "detail") == convert.printable(text)
    if text.isprintable() and len(text) <= 1000:
        assert convert.printable(text) == text
