"""One malicious member among honest sites and a real aggregator: named, left out, no harm done.

Its TLS identity and signing key are good; what it says is not. n = 5, c = 1, N_min = t = T = 4.
"""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load

from privacy.secagg import statements
from privacy.secagg.encoding import Label
from privacy.secagg.messages import (
    AbortSignature,
    DealtShares,
    RevealedShare,
    SurvivorSignature,
    UnmaskShares,
)
from privacy.secagg.shamir import PRIME
from tests.support.live_aggregator import SPEC, federation, job_toml
from tests.support.malicious_site import (
    CHEAT,
    EVERYONE,
    HONEST,
    deltas,
    everyone_is_there,
    finishes,
    make_site,
    with_unknown_field,
)
from tests.support.wire_runs import run
from tidegate import convert

NAME = "bank-3"


def is_named(job, *words):
    """Show that the log names the culprit and why."""
    assert any(all(word in line for word in (NAME, *words)) for line in job.log), list(job.log)


def flip(raw):
    return raw[:-1] + bytes([raw[-1] ^ 1])


# --- dealers --------------------------------------------------------------------------------------


DEALERS = {
    "a bad signature": (
        lambda site, dealt: replace(dealt, signature=flip(dealt.signature)),
        "bad-signature",
    ),
    "a commitment that was not signed": (
        lambda site, dealt: replace(
            dealt, commitments=replace(dealt.commitments, self_seed=bytes(32))
        ),
        "bad-signature",
    ),
    "a signature for something else": (
        lambda site, dealt: replace(
            dealt, signature=site.signer.sign(statements.SIGNED_PREFIX + b"bundle")
        ),
        "bad-signature",
    ),
    "two different dealings": (
        lambda site, dealt: [dealt, replace(dealt, signature=site.resign(dealt).signature[:-1])],
        "equivocation",
    ),
}


@pytest.mark.parametrize("case", DEALERS)
def test_a_malicious_dealer_is_named_and_the_round_goes_on_without_it(tmp_path, case):
    bend, reason = DEALERS[case]

    async def scenario():
        make = make_site({DealtShares: bend})
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            job = await finishes(live, HONEST, EVERYONE)
            is_named(job, "caught", reason)
            assert [live.sites[at].charged for at in HONEST] == [2, 2, 2, 2]

    run(scenario())


SHARES = {
    "wrong AAD": {"aad": b"another attempt"},
    "AAD of another roster": {"aad": statements.share_aad(bytes(32), 3, 1)},
    "misses its commitment": {"plaintext": bytes(66)},
    "not below the prime": {"plaintext": PRIME.to_bytes(33, "big") * 2},
}


@pytest.mark.parametrize("case", SHARES)
def test_a_share_with_a_wrong_aad_or_commitment_is_refused_and_its_dealer_accused(tmp_path, case):
    """The recipient signs the abort, uncharged; the others finish, the cheat among them."""
    victims = []

    def bend(site, dealt):
        cohort = site.live(dealt.ctx).cohort
        recipient = next(i for i in cohort.indices if cohort.members[i - 1] != site.me)
        victims.append(cohort.members[recipient - 1])
        return site.seal_again(dealt, recipient, **SHARES[case])

    async def scenario():
        make = make_site({DealtShares: bend})
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            me = {site.signer.fingerprint: at for at, site in enumerate(live.sites)}
            await everyone_is_there(live)
            job_id = await live.submit(job_toml(rounds=2, deadline=1.0))
            job = await live.watch(job_id)
            assert (job.state, job.attempts_aborted) == ("finished", 0)
            victim = me[victims[0]]
            is_named(job, f"bank-{victim + 1} says that", "dealt a bad share")
            charged = [1 if at == victim else 2 for at in EVERYONE]
            assert [site.charged for site in live.sites] == charged
            rest = [at for at in EVERYONE if at != victim]
            tensors = load(await live.export(job_id))
            flat = np.concatenate([tensors[t.name].ravel() for t in SPEC.tensors])
            first = np.mean([deltas(i)(0, SPEC.length) for i in rest], axis=0)
            second = np.mean([deltas(i)(1, SPEC.length) for i in EVERYONE], axis=0)
            np.testing.assert_allclose(flat, first + second, atol=1e-6)

    run(scenario())


def deal_inconsistently(site, dealt):
    """Commit to, and deal, shares of b that lie on no polynomial of degree t - 1."""
    cohort = site.live(dealt.ctx).cohort
    me = cohort.index_of(site.me)
    recipient = cohort.index_of(site.target)
    state = site.live(dealt.ctx)._state
    keys, secrets = state.keys, state._secrets
    own = list(keys._shares(secrets.self_mask_seed, Label.SELF_SHARE_COMMITMENT))
    mask = list(keys._shares(secrets.bundle.mask_seed, Label.MASK_SHARE_COMMITMENT))
    bent = flip(own[recipient - 1])
    committed = list(dealt.commitments.self_shares)
    committed[recipient - 1] = statements.share_commitment(
        Label.SELF_SHARE_COMMITMENT, cohort.rh, me, recipient, bent
    )
    commitments = replace(dealt.commitments, self_shares=tuple(committed))
    dealt = replace(dealt, commitments=commitments)
    return site.seal_again(dealt, recipient, plaintext=bent + mask[recipient - 1])


def test_a_dealer_whose_shares_make_no_secret_is_named_and_nothing_is_opened(tmp_path):
    """Every share is needed, as one of five is lost: the attempt aborts, the next one succeeds."""

    async def scenario():
        make = make_site({DealtShares: deal_inconsistently})
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            live.sites[CHEAT].target = live.sites[0].me
            live.sites[4].vanish_on = "Roster"
            job = await finishes(live, (0, 1, 2, 3))
            assert job.attempts_aborted == 1
            is_named(job, "caught", "bad-share")

    run(scenario())


# --- holders, voters ------------------------------------------------------------------------------


def bend_share(shares):
    return (RevealedShare(shares[0].owner, flip(shares[0].value)), *shares[1:])


HOLDERS = {
    "a share that misses its commitment": (
        lambda site, answer: replace(answer, self_shares=bend_share(answer.self_shares)),
        "bad-share",
    ),
    "too few shares": (
        lambda site, answer: replace(answer, self_shares=answer.self_shares[1:]),
        "malformed",
    ),
    "the other secret of a survivor": (
        lambda site, answer: replace(
            answer, self_shares=answer.self_shares[1:], mask_shares=answer.self_shares[:1]
        ),
        "malformed",
    ),
}


@pytest.mark.parametrize("case", HOLDERS)
def test_a_malicious_holder_is_named_and_the_next_attempt_is_exact(tmp_path, case):
    bend, reason = HOLDERS[case]

    async def scenario():
        make = make_site({UnmaskShares: bend})
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            # U1 has five members, so four answers are needed, and the cheat's is one of four.
            live.sites[0].vanish_on = "Roster"
            job = await finishes(live, (1, 2, 3, 4))
            assert job.attempts_aborted == 1
            is_named(job, "caught", reason)

    run(scenario())


def test_a_malicious_holder_among_answers_to_spare_costs_nothing(tmp_path):
    bend, _ = HOLDERS["a share that misses its commitment"]

    async def scenario():
        make = make_site({UnmaskShares: bend})
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            job = await finishes(live, EVERYONE, EVERYONE)
            assert job.attempts_aborted == 0

    run(scenario())


VOTES = {
    "on something else": lambda site, vote: replace(
        vote, signature=site.signer.sign(statements.SIGNED_PREFIX)
    ),
    "a bit flipped": lambda site, vote: replace(vote, signature=flip(vote.signature)),
}


@pytest.mark.parametrize("case", VOTES)
def test_a_bad_vote_is_named_and_the_round_goes_on(tmp_path, case):
    async def scenario():
        make = make_site({SurvivorSignature: VOTES[case]})
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            job = await finishes(live, EVERYONE, EVERYONE)
            is_named(job, "caught", "bad-signature")

    run(scenario())


def test_an_abort_forged_for_another_site_is_refused(tmp_path):
    """A vote in another's name ends the forger's own session, and nobody else's."""

    async def scenario():
        make = make_site()
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            victim = live.sites[0].signer.fingerprint

            def forge(site, dealt):
                return [dealt, AbortSignature(dealt.ctx, victim, dealt.signature)]

            live.sites[CHEAT].bend = {DealtShares: forge}
            await everyone_is_there(live)
            job = await live.watch(await live.submit(job_toml(rounds=2, deadline=2.0)))
            assert (job.state, job.attempts_aborted) == ("finished", 0)
            assert {site.site_id: site.rounds_in for site in job.sites}["bank-1"] == 2
            await live.sites[CHEAT].dead.wait()

    run(scenario())


# --- frames ---------------------------------------------------------------------------------------


def serialised(message):
    return convert.site_message_to_wire(message).SerializeToString()


FRAMES = {
    "truncated": lambda site, dealt: serialised(dealt)[:-1],
    "oversized": lambda site, dealt: serialised(dealt) + bytes(4_300_000),
    "rubbish": lambda site, dealt: b"\xff" * 50,
    "a ciphertext too few": lambda site, dealt: replace(
        dealt, ciphertexts=(*dealt.ciphertexts[:2], dealt.ciphertexts[2][:-1], b"", b"")
    ),
    "a short commitment": lambda site, dealt: replace(
        dealt, commitments=replace(dealt.commitments, self_seed=b"short")
    ),
}


@pytest.mark.parametrize("case", FRAMES)
def test_a_frame_that_cannot_be_read_ends_its_senders_session_only(tmp_path, case):
    async def scenario():
        make = make_site({DealtShares: FRAMES[case]})
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            await finishes(live, HONEST, HONEST)
            await live.sites[CHEAT].dead.wait()
            assert [site.charged for site in live.sites] == [2, 2, 0, 2, 2]

    run(scenario())


def test_unknown_fields_from_a_site_change_nothing(tmp_path):
    """A weight, a loss, a count beside the vector: there is no field, so nobody reads it."""

    async def scenario():
        kinds = (DealtShares, SurvivorSignature, UnmaskShares)
        bend = dict.fromkeys(kinds, lambda site, message: with_unknown_field(message))
        make = make_site(bend, once=False)
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            job = await finishes(live, EVERYONE, EVERYONE)
            assert (job.attempts_aborted, live.sites[CHEAT].bent) == (0, 6)
            assert dict(job.metrics) == {}

    run(scenario())


UPLOADS = {
    "mis-sized": (lambda ctx, packed: packed + b"x", "wrong-shape"),
    "truncated": (lambda ctx, packed: packed[:-1], "wrong-shape"),
}


@pytest.mark.parametrize("case", UPLOADS)
def test_an_upload_of_another_size_is_refused_and_its_site_drops_out(tmp_path, case):
    bend, reason = UPLOADS[case]

    async def scenario():
        make = make_site(bend_upload=bend)
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            await finishes(live, HONEST, EVERYONE)
            assert live.sites[CHEAT].upload_refusals == [reason]

    run(scenario())


def test_a_vector_without_its_masks_makes_a_sum_that_is_not_applied(tmp_path):
    """Noise over the whole ring, which no honest sum looks like: the job stops and says so."""

    async def scenario():
        make = make_site(bend_upload=lambda ctx, packed: bytes(len(packed)))
        async with federation(tmp_path, delta_of=deltas, make_site=make) as live:
            await everyone_is_there(live)
            job_id = await live.submit(job_toml(rounds=1))
            job = await live.watch(job_id)
            assert job.state == "failed"
            assert "ring-wrap: the sum has wrapped" in job.detail
            tensors = load(await live.export(job_id))
            assert not any(tensors[t.name].any() for t in SPEC.tensors)

    run(scenario())
