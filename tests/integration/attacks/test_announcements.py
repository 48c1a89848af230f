"""What a hostile aggregator announces with a model version: refused, or of no use to it.

A low-rank job of mode record-distributed, but for the step size, which only modes without noise of
their own in the sum let the aggregator announce.
"""

import struct
from dataclasses import replace

import numpy as np
import pytest

from privacy.announcement import Announcement, encoding_for_version
from privacy.basis import Basis, first_basis
from privacy.errors import Reason
from privacy.ring import centre
from privacy.secagg.messages import UnmaskShares
from privacy.spec import TensorSpec, VectorSpec
from tests.support.attacker_knowledge import opens_nothing
from tests.support.hostile_aggregator import hostile
from tests.support.live_aggregator import NONE, RECORD, job_toml
from tests.support.wire_runs import run
from tidegate import messages as m

SPEC = VectorSpec((TensorSpec("w", (60, 60)), TensorSpec("b", (60,))))
LOW_RANK = b'map = "low-rank"\nrank = 2\nsmall_keep = 0.5'
TOML = job_toml(privacy=RECORD, target=5, rounds=20).replace(b'map = "identity"', LOW_RANK)
PLAIN = job_toml(privacy=NONE, target=5, rounds=20).replace(b'map = "identity"', LOW_RANK)


def announced(plan, version=0, **changes):
    return replace(Announcement.from_bytes(plan, version, b""), **changes).to_bytes()


def filled(plan, parity, value):
    shapes = plan.low_rank.basis_shapes(parity)
    return Basis(tuple(np.full(shape, value, np.int8) for shape in shapes))


WRONG = {
    "cut off": lambda plan, good: good[:-1],
    "too long": lambda plan, good: good + b"\1",
    "no basis": lambda plan, good: good[:8],
    "a basis of zeros": lambda plan, good: good[:8] + bytes(len(good) - 8),
    "an entry of -128": lambda plan, good: good[:8] + b"\x80" + good[9:],
    "a scale of NaN": lambda plan, good: struct.pack("<d", float("nan")) + good[8:],
    "a scale of its own": lambda plan, good: struct.pack("<d", plan.scale * 2) + good[8:],
}
WRONG_SCALES = {
    "infinite": float("inf"),
    "negative": -1.0,
    "zero": 0.0,
    "beyond all range": 1e300,
    "below all range": 1e-300,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_announcement_of_the_job_is_refused_uncharged(tmp_path, wrong):
    async def scenario():
        async with hostile(tmp_path, toml=TOML, spec=SPEC, joined=False) as evil:
            await evil.greet()
            assert (await evil.offer()).accepted
            bad = WRONG[wrong](evil.encoding, announced(evil.encoding))
            evil.send(evil.train_request(announcement=bad))
            refusal = await evil.expect(m.NotReady)
            assert refusal.reason in (Reason.MALFORMED, Reason.POLICY)
            assert evil.charges() == 0
            await evil.goes_on(1)

    run(scenario())


@pytest.mark.parametrize("scale", WRONG_SCALES.values(), ids=WRONG_SCALES)
def test_a_step_size_out_of_range_is_refused(tmp_path, scale):
    async def scenario():
        async with hostile(tmp_path, toml=PLAIN, spec=SPEC, joined=False) as evil:
            await evil.greet()
            assert (await evil.offer()).accepted
            bad = struct.pack("<d", scale) + announced(evil.encoding)[8:]
            evil.send(evil.train_request(announcement=bad))
            assert (await evil.expect(m.NotReady)).reason == Reason.POLICY

    run(scenario())


def test_the_bases_of_the_other_parity_are_refused(tmp_path):
    """A matrix that is not square, so that the two differ in size."""
    spec = VectorSpec((TensorSpec("w", (50, 70)), TensorSpec("b", (60,))))

    async def scenario():
        async with hostile(tmp_path, toml=TOML, spec=spec, joined=False) as evil:
            await evil.greet()
            assert (await evil.offer()).accepted
            evil.send(evil.train_request(announcement=announced(evil.encoding, version=1)))
            assert (await evil.expect(m.NotReady)).reason in (Reason.MALFORMED, Reason.WRONG_SHAPE)
            await evil.goes_on(1)

    run(scenario())


def test_a_basis_of_the_largest_norm_raises_no_bound(tmp_path):
    """All 127: as it stands its norm is 127 * sqrt(120); the site scales it to 1."""

    async def scenario():
        async with hostile(tmp_path, toml=TOML, spec=SPEC, joined=False) as evil:
            await evil.greet()
            assert (await evil.offer()).accepted
            raw = announced(evil.encoding, basis=filled(evil.encoding, 0, 127))
            assert isinstance(await evil.train(announcement=raw), m.Ready)
            plan = encoding_for_version(evil.encoding, 0, raw)
            assert np.linalg.norm(plan.linear_map.apply(np.eye(SPEC.length)), 2) <= 1 + 1e-12
            assert plan.sensitivity == evil.encoding.sensitivity
            noise = 6 * np.sqrt(plan.noise_variance * plan.length)
            records = 200  # the stand-in's rows at most, each within D2
            assert np.linalg.norm(evil.update()) <= records * plan.sensitivity + noise
            attempt = await evil.attempt()
            await attempt.run_honestly()
            assert evil.charges() == 1

    run(scenario())


def test_two_announcements_for_one_version_are_refused_by_the_site_itself(tmp_path):
    async def scenario():
        async with hostile(tmp_path, toml=TOML, spec=SPEC) as evil:
            other = announced(evil.encoding, basis=filled(evil.encoding, 0, 1))
            evil.send(evil.train_request(2, 0, announcement=other))
            assert (await evil.expect(m.NotReady)).reason == Reason.EQUIVOCATION
            await evil.goes_on(2)

    run(scenario())


def test_an_announcement_that_the_broadcast_does_not_name_ends_the_session(tmp_path):
    async def scenario():
        async with hostile(tmp_path, toml=TOML, spec=SPEC) as evil:
            good = evil.train_request(2, 1, announcement=announced(evil.encoding, 1))
            other = announced(evil.encoding, 1, basis=filled(evil.encoding, 1, 1))
            evil.send(replace(good, announcement=other))
            await evil.greet()
            assert evil.charges() == 0
            await evil.goes_on(2)

    run(scenario())


def test_announcement_equivocation_ends_in_noise(tmp_path):
    """Another basis for the victim, so that its update would stand out of the sum."""

    async def scenario():
        async with hostile(tmp_path, toml=TOML, spec=SPEC, joined=False) as evil:
            await evil.greet()
            assert (await evil.offer()).accepted
            trap = announced(evil.encoding, basis=filled(evil.encoding, 0, 127))
            assert isinstance(await evil.train(announcement=trap), m.Ready)
            attempt = await evil.attempt()
            usual = encoding_for_version(evil.encoding, 0).to_bytes()
            assert usual != attempt.roster.plan.encoding
            told = replace(attempt.roster, plan=replace(attempt.roster.plan, encoding=usual))
            for index in attempt.others:
                attempt.peer_expects(index, told, encoding=usual)
            await attempt.deal()
            await attempt.upload()
            await attempt.vote()
            votes = [attempt.votes[index] for index in attempt.others]
            for index in attempt.others:
                (attempt.answers[index],) = attempt.feed(index, attempt.quorum(votes))
            evil.send(attempt.quorum(votes))
            await evil.refused(Reason.BAD_SIGNATURE)
            assert opens_nothing(attempt, attempt.others[0])
            assert not any(isinstance(said, UnmaskShares) for said in evil.said)

    run(scenario())


def test_a_wide_ring_gives_nothing_away_but_the_sum(tmp_path):
    """Mode none: a step size near the end of its range only makes the sum wrap."""

    async def scenario():
        async with hostile(tmp_path, toml=PLAIN, spec=SPEC, joined=False) as evil:
            await evil.greet()
            assert (await evil.offer()).accepted
            plan = evil.encoding
            raw = announced(
                plan, scale=plan.scale * 2.0**20, basis=first_basis(plan.low_rank, 0, bytes(32))
            )
            assert isinstance(await evil.train(announcement=raw), m.Ready)
            attempt = await evil.attempt()
            await attempt.run_honestly()
            values = centre(attempt.uploads[attempt.victim], plan.bits)
            assert np.abs(values).max() <= 128

    run(scenario())
