"""The proof of the retry rule on the wire: its bounds, its vector, and what it gives back."""

import pytest

from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.messages import RetryProof, RetryVote
from privacy.secagg.retry import check_retry
from tests.support.secagg_harness import Federation
from tests.vectors.write_frames import RETRY_PROOF, retry_proof
from tidegate import convert
from tidegate.convert import Limits
from tidegate.v1 import federation_pb2, secagg_pb2

HASH, SITE, OTHER, SIGNATURE = b"h" * 32, b"s" * 32, b"t" * 32, bytes(70)
FIVE = Limits(max_sites=5)


def vote(signer=SITE, signature=SIGNATURE):
    return secagg_pb2.RetryVote(signer=signer, signature=signature)


def take(**changes):
    fields = {
        "ctx": HASH,
        "aborts": [vote()],
        "votes": [vote(OTHER)],
        "dealt": [1, 2, 3],
        "survivors": [1, 3],
    }
    proof = secagg_pb2.RetryProof(**{**fields, **changes})
    frame = federation_pb2.SessionResponse(retry_proof=proof)
    return convert.aggregator_message_from_wire(frame, FIVE)


def test_a_proof_is_votes_on_the_abort_then_votes_on_one_set():
    assert take() == RetryProof(
        HASH, (RetryVote(SITE, SIGNATURE), RetryVote(OTHER, SIGNATURE, (1, 2, 3), (1, 3)))
    )


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("ctx", b"", Reason.MALFORMED),
        ("aborts", [vote(HASH[:-1])], Reason.MALFORMED),
        ("aborts", [vote(OTHER)], Reason.MALFORMED),  # who votes twice
        ("aborts", [vote(), vote()], Reason.MALFORMED),
        ("aborts", [vote()] * 6, Reason.TOO_LARGE),
        ("votes", [vote(OTHER, bytes(73))], Reason.MALFORMED),
        ("votes", [vote(OTHER, b"")], Reason.MALFORMED),
        ("votes", [vote(OTHER)] * 6, Reason.TOO_LARGE),
        ("votes", [], Reason.TOO_LARGE),  # sets that nobody signed
        ("dealt", [], Reason.MALFORMED),
        ("survivors", [], Reason.MALFORMED),  # a vote on a set that is then read as an abort
        ("survivors", [3, 1], Reason.MALFORMED),
        ("survivors", [0, 1], Reason.MALFORMED),
        ("dealt", [1, 6], Reason.MALFORMED),
        ("dealt", list(range(1, 7)), Reason.TOO_LARGE),
    ],
)
def test_a_broken_bound_is_refused_by_name(field, value, reason):
    with pytest.raises(PeerError, match="retry_proof") as caught:
        take(**{field: value})
    assert caught.value.reason is reason


def test_a_proof_without_any_vote_is_refused():
    with pytest.raises(PeerError, match="must hold a signature"):
        take(aborts=[], votes=[], dealt=[], survivors=[])


def test_votes_on_two_sets_do_not_travel():
    votes = (RetryVote(SITE, SIGNATURE, (1, 2), (1,)), RetryVote(OTHER, SIGNATURE, (1, 2), (2,)))
    with pytest.raises(UsageError, match="one survivor set"):
        convert.aggregator_message_to_wire(RetryProof(HASH, votes))


def test_the_vector_is_the_proof_of_today_and_frees_the_fifth_site():
    raw = RETRY_PROOF.read_bytes()
    assert raw == retry_proof(), "run: python -m tests.vectors.write_frames"
    frame = federation_pb2.SessionResponse.FromString(raw)
    proof = convert.aggregator_message_from_wire(frame)
    federation = Federation(5, length=4)
    federation.upload_all()
    fifth = federation.site(5)
    assert check_retry(fifth.config, fifth.slots, proof).attempt == 1
