"""Frames that a hostile aggregator cuts, swells, bends, or fills with what nobody asked for.

A frame that cannot be read ends the session, and the site dials again; one that reads but does not
check ends the attempt. Neither is charged, neither stops the daemon.
"""

import hashlib
import random
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from privacy.errors import PeerError, Reason
from privacy.secagg.messages import AbortSignature, DealtShares, UnmaskShares
from tests.support.attacker_knowledge import Knowledge
from tests.support.hostile_aggregator import hostile
from tests.support.live_aggregator import SPEC
from tests.support.wire_runs import run
from tidegate import convert
from tidegate import messages as m
from tidegate.v1 import federation_pb2 as pb

UNKNOWN_FIELD = b"\xfa\x3f\x0bnum-records"
"""Field 1023, length-delimited: no message of ours has it."""


def frame_of(message):
    return convert.aggregator_message_to_wire(message).SerializeToString()


def is_read(frame):
    """Tell whether a site can read a frame at all."""
    try:
        convert.aggregator_message_from_wire(pb.SessionResponse.FromString(frame))
    except (DecodeError, PeerError):
        return False
    return True


async def unreadable(evil, frame):
    """Send what ends the session; the site comes back, and nothing was charged for it."""
    assert not is_read(frame)
    before = evil.charges()
    evil.send_raw(frame)
    await evil.greet()
    assert evil.charges() == before


@pytest.mark.parametrize("step", ["Roster", "ShareDelivery", "SurvivorSet", "SurvivorQuorum"])
def test_truncated_frames_end_the_session_and_the_attempt_goes_on(tmp_path, step):
    """Cut at three places, at each step; then the whole frame comes, and the sum is opened."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            whole = {
                "Roster": lambda: attempt.roster,
                "ShareDelivery": lambda: attempt.delivery(attempt.victim),
                "SurvivorSet": lambda: attempt.survivor_set(attempt.all),
                "SurvivorQuorum": attempt.quorum,
            }
            steps = {
                "Roster": attempt.deal,
                "ShareDelivery": attempt.upload,
                "SurvivorSet": attempt.vote,
                "SurvivorQuorum": attempt.unmask,
            }
            for name, go in steps.items():
                if name == step:
                    frame = frame_of(whole[name]())
                    for cut in (1, len(frame) // 2, len(frame) - 1):
                        await unreadable(evil, frame[:cut])
                await go()
            honest = frozenset(attempt.all) - {attempt.others[0]}
            assert Knowledge(attempt, attempt.others[:1]).opened() == {honest}
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def test_rubbish_and_empty_frames_end_the_session_only(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            rng = random.Random(5)
            for frame in (b"\xff\xff\xff\xff", rng.randbytes(300), b"\x2a\x00"):
                await unreadable(evil, frame)
            await evil.goes_on(2)

    run(scenario())


def test_oversized_frames_are_refused_by_their_counts_and_by_their_bytes(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            many = tuple(range(1, 300_000))
            await unreadable(evil, frame_of(replace(attempt.survivor_set(many), dealt=many)))
            roster = replace(attempt.roster, bundles=attempt.roster.bundles * 300)
            await unreadable(evil, frame_of(roster))
            evil.send_raw(bytes(65 << 20))  # more than gRPC itself takes
            await evil.greet()
            assert evil.charges() == 0
            await evil.goes_on(2)

    run(scenario())


SIZES = {
    "ctx": lambda frame: setattr(frame.share_delivery, "ctx", bytes(31)),
    "sender": lambda frame: setattr(frame.share_delivery.shares[0], "sender", bytes(33)),
    "ciphertext": lambda frame: setattr(frame.share_delivery.shares[0], "ciphertext", bytes(81)),
    "signature": lambda frame: setattr(frame.share_delivery.shares[0], "signature", bytes(200)),
    "no shares": lambda frame: frame.share_delivery.ClearField("shares"),
    "a dealer twice": lambda frame: frame.share_delivery.shares.append(
        frame.share_delivery.shares[0]
    ),
}


@pytest.mark.parametrize("field", SIZES)
def test_mis_sized_fields_are_refused_before_anything_looks_at_them(tmp_path, field):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            frame = convert.aggregator_message_to_wire(attempt.delivery(attempt.victim))
            SIZES[field](frame)
            await unreadable(evil, frame.SerializeToString())
            await attempt.upload()
            assert evil.charges() == 1
            await evil.goes_on(2)

    run(scenario())


def same_but_own_signature(attempt, frame):
    """Tell whether a roster differs only where the site need not look: its own signature."""
    roster = convert.aggregator_message_from_wire(pb.SessionResponse.FromString(frame))
    own = attempt.roster.bundles[attempt.victim - 1]
    bundles = list(roster.bundles)
    bundles[attempt.victim - 1] = replace(bundles[attempt.victim - 1], signature=own.signature)
    return replace(roster, bundles=tuple(bundles)) == attempt.roster


def test_flipped_bits_in_a_roster_deal_nothing_under_it(tmp_path):
    """Whatever the bit, the site deals for the roster it was sent or not at all; uncharged."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            rng = random.Random(11)
            for number in range(1, 17):
                attempt = await evil.attempt(1, attempt=number)
                frame = bytearray(frame_of(attempt.roster))
                place = rng.randrange(len(frame))
                frame[place] ^= 1 << rng.randrange(8)
                if not is_read(bytes(frame)):
                    await unreadable(evil, bytes(frame))
                    await evil.train(1)
                    continue
                evil.send_raw(bytes(frame))
                answer = await evil.expect((m.AttemptFailed, DealtShares))
                if isinstance(answer, DealtShares):
                    assert same_but_own_signature(attempt, bytes(frame)), f"bit at byte {place}"
                await evil.train(1)
            assert (evil.uploads, evil.charges()) == ([], 0)
            await evil.goes_on(2)

    run(scenario())


def test_flipped_bits_in_a_delivery_are_never_charged(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            rng = random.Random(13)
            for number in range(1, 17):
                attempt = await evil.attempt(1, attempt=number)
                await attempt.deal()
                frame = bytearray(frame_of(attempt.delivery(attempt.victim)))
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
                if is_read(bytes(frame)):
                    evil.send_raw(bytes(frame))
                else:
                    await unreadable(evil, bytes(frame))
                evil.send(m.BundleRequest(1))
                await evil.expect(m.BundleStock)
                await evil.train(1)
            assert (evil.uploads, evil.charges()) == ([], 0)
            await evil.goes_on(2)

    run(scenario())


def test_unknown_fields_are_ignored_and_enter_no_hash(tmp_path):
    """What a later version, or a spy, puts beside the fields is neither read nor answered."""

    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            evil.send_raw(frame_of(attempt.roster) + UNKNOWN_FIELD)
            first = await evil.expect(DealtShares)
            await attempt.deal()
            assert attempt.dealt[attempt.victim] == first
            await attempt.upload()
            await attempt.vote()
            await attempt.unmask()
            honest = frozenset(attempt.all) - {attempt.others[0]}
            assert Knowledge(attempt, attempt.others[:1]).opened() == {honest}
            await evil.goes_on(2)

    run(scenario())


# --- what is fetched ------------------------------------------------------------------------------


MODELS = {
    "other bytes": (lambda data: b"\1" + data[1:], Reason.WRONG_DIGEST),
    "too short": (lambda data: data[:-4], Reason.MALFORMED),
    "too long": (lambda data: data + bytes(4), Reason.MALFORMED),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_is_not_the_announced_one_is_not_trained_from(tmp_path, case):
    bend, reason = MODELS[case]

    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            await evil.offer()
            request = evil.train_request()
            digest = request.broadcast.checkpoint.sha256
            good = evil.content[digest]
            evil.content[digest] = bend(good)
            evil.send(request)
            assert (await evil.expect(m.NotReady)).reason == reason
            assert evil.charges() == 0
            evil.content[digest] = good
            await evil.goes_on(2)

    run(scenario())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_not_trained_from(tmp_path, value):
    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            await evil.offer()
            bad_D = np.zeros(SPEC.length, np.float32)
            bad_D[5] = value
            answer = await evil.train(model_D=bad_D)
            assert (answer.reason, evil.charges()) == (Reason.NOT_FINITE, 0)
            evil.models.clear()
            await evil.offer()
            await evil.goes_on(1)

    run(scenario())


def test_an_app_that_is_not_the_announced_one_is_not_run(tmp_path):
    async def scenario():
        async with hostile(tmp_path, joined=False) as evil:
            await evil.greet()
            offer = evil.make_job()
            good = evil.content[offer.app_sha256]
            evil.content[offer.app_sha256] = good.replace(b"model", b"m0del")
            reply = await evil.offer(offer)
            assert (reply.accepted, reply.reason) == (False, Reason.WRONG_DIGEST)
            evil.content[offer.app_sha256] = good
            assert hashlib.sha256(good).digest() == offer.app_sha256
            assert (await evil.offer(offer)).accepted
            await evil.goes_on(1)

    run(scenario())


def test_a_published_transcript_that_is_another_one_kills_the_attempt(tmp_path):
    async def scenario():
        async with hostile(tmp_path) as evil:
            attempt = await evil.attempt()
            await attempt.deal()
            await attempt.upload()
            await attempt.vote()
            await attempt.unmask()
            evil.send(m.AttemptResult(attempt.ctx, bytes(32), attempt.all))
            await evil.refused(Reason.EQUIVOCATION, "transcript")
            assert not any(isinstance(said, AbortSignature) for said in evil.said)
            assert len([said for said in evil.said if isinstance(said, UnmaskShares)]) == 1
            await evil.goes_on(2)

    run(scenario())
