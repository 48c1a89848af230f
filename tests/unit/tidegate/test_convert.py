"""Each bound by name: a valid message, one field made wrong, and the refusal that names it."""

from dataclasses import dataclass

import pytest

from privacy.errors import PeerError, Reason
from privacy.secagg.keys import X25519
from tidegate import convert
from tidegate.broadcast import MAX_LOG_BYTES, Broadcast, ContentName, OpenedSumName
from tidegate.convert import Limits
from tidegate.manifest import Manifest, ManifestLimits
from tidegate.messages import JobReply, NotReady, Refused
from tidegate.v1 import federation_pb2, secagg_pb2

SITE, OTHER = b"\x01" * 32, b"\x02" * 32
HASH, SIGNATURE, POINT, CIPHERTEXT = b"h" * 32, b"s" * 70, b"\x04" + b"p" * 64, b"c" * 82
BROADCAST = Broadcast(1, OpenedSumName(ContentName(HASH, 9), 0, 4)).raw
TINY = Limits(max_sites=5, max_vector_length=1000, max_message_bytes=1024)


def bundle(site=SITE, serial=1):
    return secagg_pb2.Bundle(
        consortium_id="demo", site=site, instance_id=bytes(16), serial=serial, c_pk=POINT,
        m_pk=POINT, r_commitment=HASH, not_after_s=1_900_000_000, signature=SIGNATURE,
    )  # fmt: skip


def commitments():
    return secagg_pb2.ShareCommitments(
        self_seed=HASH, self_shares=[HASH] * 3, mask_shares=[HASH] * 3
    )


def from_site(**fields):
    return federation_pb2.SessionRequest(**fields)


def from_aggregator(**fields):
    return federation_pb2.SessionResponse(**fields)


VALID = {
    "hello": lambda: from_site(
        hello=federation_pb2.Hello(
            protocol="tidegate/1.0", instance_id=bytes(16), device="cpu", jobs=["j-1", "j-2"]
        )
    ),
    "bundles": lambda: from_site(
        bundles=federation_pb2.BundleStock(bundles=[bundle(), bundle(serial=2)])
    ),
    "job_reply": lambda: from_site(job_reply=federation_pb2.JobReply(job_id="j", accepted=True)),
    "ready": lambda: from_site(ready=federation_pb2.Ready(job_id="j", round=1, epsilon_spent=0.5)),
    "not_ready": lambda: from_site(
        not_ready=federation_pb2.NotReady(job_id="j", reason="budget-exhausted", detail="gone")
    ),
    "graph_reveal": lambda: from_site(
        graph_reveal=secagg_pb2.GraphReveal(ctx=HASH, value=HASH)
    ),
    "dealt_shares": lambda: from_site(
        dealt_shares=secagg_pb2.DealtShares(
            ctx=HASH, ciphertexts=[b"", CIPHERTEXT, CIPHERTEXT], commitments=commitments(),
            signature=SIGNATURE,
        )
    ),
    "survivor_signature": lambda: from_site(
        survivor_signature=secagg_pb2.SurvivorSignature(
            ctx=HASH, sender=SITE, signature=SIGNATURE
        )
    ),
    "unmask_shares": lambda: from_site(
        unmask_shares=secagg_pb2.UnmaskShares(
            ctx=HASH,
            self_shares=[secagg_pb2.RevealedShare(owner=n, value=bytes(33)) for n in (1, 2)],
            mask_shares=[secagg_pb2.RevealedShare(owner=3, value=bytes(33))],
        )
    ),
    "abort_signature": lambda: from_site(
        abort_signature=secagg_pb2.AbortSignature(ctx=HASH, sender=SITE, signature=SIGNATURE)
    ),
    "attempt_failed": lambda: from_site(
        attempt_failed=federation_pb2.AttemptFailed(ctx=HASH, reason="bad-share", detail="x")
    ),
    "welcome": lambda: from_aggregator(
        welcome=federation_pb2.Welcome(protocol="tidegate/1.0", manifest=b"{}",
                                       manifest_signature=SIGNATURE)
    ),
    "bundle_request": lambda: from_aggregator(
        bundle_request=federation_pb2.BundleRequest(count=64)
    ),
    "job_offer": lambda: from_aggregator(
        job_offer=federation_pb2.JobOffer(job_id="j", job_toml=b"x", app_sha256=HASH, app_size=9,
                                          vector_spec=b"s", encoding=b"e")
    ),
    "train_request": lambda: from_aggregator(
        train_request=federation_pb2.TrainRequest(
            job_id="j", round=1, broadcast=BROADCAST, chain_head=HASH, log_sha256=HASH, log_size=9
        )
    ),
    "roster": lambda: from_aggregator(
        roster=secagg_pb2.Roster(
            context=secagg_pb2.AttemptContext(
                suite="P256_SHA256_AES256", consortium_id="demo", manifest_hash=HASH, job_id="j",
                roster_epoch=1, round=1, attempt=1,
            ),
            bundles=[bundle(), bundle(OTHER)],
            plan=secagg_pb2.CohortPlan(
                encoding=b"e", ring_bits=20, length=1000, colluders=1, min_survivors=4,
                dropout_percent=20, chain_head=HASH,
                bases=[secagg_pb2.BaseVersion(site=s, version=1) for s in (SITE, OTHER)],
            ),
        )
    ),
    "graph_reveals": lambda: from_aggregator(
        graph_reveals=secagg_pb2.GraphReveals(ctx=HASH, values=[HASH] * 3)
    ),
    "share_delivery": lambda: from_aggregator(
        share_delivery=secagg_pb2.ShareDelivery(
            ctx=HASH,
            shares=[
                secagg_pb2.DeliveredShare(
                    sender=s, ciphertext=CIPHERTEXT, self_seed=HASH, self_share=HASH,
                    mask_share=HASH, path=[HASH] * 3, signature=SIGNATURE,
                )
                for s in (SITE, OTHER)
            ],
        )
    ),
    "survivor_set": lambda: from_aggregator(
        survivor_set=secagg_pb2.SurvivorSet(ctx=HASH, dealt=[1, 2, 3], survivors=[1, 3])
    ),
    "survivor_quorum": lambda: from_aggregator(
        survivor_quorum=secagg_pb2.SurvivorQuorum(
            ctx=HASH,
            signatures=[
                secagg_pb2.SurvivorSignature(ctx=HASH, sender=s, signature=SIGNATURE)
                for s in (SITE, OTHER)
            ],
        )
    ),
    "abort_request": lambda: from_aggregator(
        abort_request=secagg_pb2.AbortRequest(ctx=HASH, reason="too few sites")
    ),
    "retry_proof": lambda: from_aggregator(
        retry_proof=secagg_pb2.RetryProof(
            ctx=HASH,
            aborts=[secagg_pb2.RetryVote(signer=SITE, signature=SIGNATURE)],
            votes=[secagg_pb2.RetryVote(signer=OTHER, signature=SIGNATURE)],
            dealt=[1, 2, 3], survivors=[1, 3],
        )
    ),
    "attempt_result": lambda: from_aggregator(
        attempt_result=federation_pb2.AttemptResult(
            ctx=HASH, transcript_hash=HASH, survivors=[1, 2]
        )
    ),
    "job_ended": lambda: from_aggregator(
        job_ended=federation_pb2.JobEnded(job_id="j", state="finished")
    ),
    "refused": lambda: from_aggregator(refused=federation_pb2.Refused(reason="policy")),
}  # fmt: skip


def take(message):
    if isinstance(message, federation_pb2.SessionRequest):
        return convert.site_message_from_wire(message, SITE, TINY)
    return convert.aggregator_message_from_wire(message, TINY)


def test_every_message_of_the_contract_has_a_valid_example():
    for kind in (federation_pb2.SessionRequest, federation_pb2.SessionResponse):
        for field in kind.DESCRIPTOR.fields:
            example = VALID[field.name]()
            assert example.WhichOneof("message") == field.name
            take(example)


@dataclass
class Wrong:
    """One field of a valid message set to a bad value."""

    kind: str
    path: str
    value: object
    reason: Reason = Reason.MALFORMED
    named: str = ""

    def __str__(self):
        return f"{self.kind}.{self.path}={str(self.value)[:12]}"


M, BIG, AUTH = Reason.MALFORMED, Reason.TOO_LARGE, Reason.UNAUTHENTICATED
LONG = "x" * 1001
WRONG = [
    Wrong("hello", "instance_id", bytes(15)),
    Wrong("hello", "protocol", "tidegate/1.0\n"),
    Wrong("hello", "protocol", "x" * 65, BIG),
    Wrong("hello", "device", "\x1b[2J"),
    Wrong("hello", "jobs", ["j", "j"]),
    Wrong("hello", "jobs", ["../j"]),
    Wrong("hello", "jobs", [f"j-{n}" for n in range(65)], BIG),
    Wrong("bundles", "bundles", []),
    Wrong("bundles", "bundles", [bundle(), bundle()], M, "serial"),
    Wrong("bundles", "bundles", [bundle(serial=n) for n in range(257)], BIG),
    Wrong("bundles", "bundles.0.site", OTHER, AUTH),
    Wrong("bundles", "bundles.0.site", bytes(31)),
    Wrong("bundles", "bundles.0.consortium_id", "A B"),
    Wrong("bundles", "bundles.0.instance_id", bytes(17)),
    Wrong("bundles", "bundles.0.serial", 2**63),
    Wrong("bundles", "bundles.0.c_pk", POINT[:64]),
    Wrong("bundles", "bundles.0.m_pk", b"\x02" + POINT[1:]),
    Wrong("bundles", "bundles.0.r_commitment", b""),
    Wrong("bundles", "bundles.0.not_after_s", 2**41),
    Wrong("bundles", "bundles.0.signature", bytes(73)),
    Wrong("bundles", "bundles.0.signature", b""),
    Wrong("job_reply", "job_id", "J"),
    Wrong("job_reply", "job_id", "j\n"),
    Wrong("job_reply", "job_id", ""),
    Wrong("job_reply", "accepted", False, M, "reason"),
    Wrong("job_reply", "reason", "policy"),
    Wrong("job_reply", "detail", "a\nforged log line"),
    Wrong("job_reply", "detail", "right-to-left \u202e"),
    Wrong("job_reply", "detail", LONG, BIG),
    Wrong("ready", "round", 1_000_001),
    Wrong("ready", "version", 1_000_001),
    Wrong("ready", "epsilon_spent", float("nan"), Reason.NOT_FINITE),
    Wrong("ready", "epsilon_spent", float("inf"), Reason.NOT_FINITE),
    Wrong("ready", "epsilon_spent", -0.1),
    Wrong("ready", "train_s", -1.0),
    Wrong("ready", "exchange_s", float("nan"), Reason.NOT_FINITE),
    Wrong("ready", "wait_s", 1e12),
    Wrong("not_ready", "reason", "because"),
    Wrong("not_ready", "reason", ""),
    Wrong("not_ready", "epsilon_spent", float("-inf"), Reason.NOT_FINITE),
    Wrong("not_ready", "round", 2**31),
    Wrong("graph_reveal", "ctx", b""),
    Wrong("graph_reveal", "value", bytes(31)),
    Wrong("dealt_shares", "ctx", bytes(33)),
    Wrong("dealt_shares", "ciphertexts", [b"", CIPHERTEXT], M, "commitments"),
    Wrong("dealt_shares", "ciphertexts", [CIPHERTEXT] * 3),
    Wrong("dealt_shares", "ciphertexts", [b"", b"", CIPHERTEXT]),
    Wrong("dealt_shares", "ciphertexts", [b"", CIPHERTEXT, CIPHERTEXT[:-1]]),
    Wrong("dealt_shares", "ciphertexts", [b""] + [CIPHERTEXT] * 5, BIG),
    Wrong("dealt_shares", "commitments.self_seed", bytes(31)),
    Wrong("dealt_shares", "commitments.self_shares", [HASH] * 2),
    Wrong("dealt_shares", "commitments.mask_shares", [HASH, HASH, b"h"]),
    Wrong("dealt_shares", "signature", bytes(7)),
    Wrong("survivor_signature", "sender", OTHER, AUTH),
    Wrong("survivor_signature", "ctx", b""),
    Wrong("survivor_signature", "signature", bytes(80)),
    Wrong("unmask_shares", "self_shares.0.value", bytes(32)),
    Wrong("unmask_shares", "self_shares.0.owner", 0),
    Wrong("unmask_shares", "self_shares.0.owner", 2),
    Wrong("unmask_shares", "mask_shares.0.owner", 2, M, "both secrets"),
    Wrong("unmask_shares", "surplus_seeds", [bytes(31)]),
    Wrong("unmask_shares", "surplus_seeds", [bytes(32)] * 5, BIG),
    Wrong("unmask_shares", "mask_shares.0.owner", 6),
    Wrong("abort_signature", "sender", OTHER, AUTH),
    Wrong("abort_signature", "ctx", bytes(31)),
    Wrong("abort_signature", "accused", bytes(31)),
    Wrong("abort_signature", "accused", b"x"),
    Wrong("attempt_failed", "ctx", bytes(31)),
    Wrong("attempt_failed", "reason", "x"),
    Wrong("welcome", "manifest_signature", b""),
    Wrong("welcome", "manifest", b""),
    Wrong("welcome", "manifest", bytes((1 << 20) + 1), BIG),
    Wrong("bundle_request", "count", 0),
    Wrong("bundle_request", "count", 257),
    Wrong("job_offer", "job_toml", bytes(65_537), BIG),
    Wrong("job_offer", "job_toml", b""),
    Wrong("job_offer", "app_size", 0),
    Wrong("job_offer", "app_size", (1 << 20) + 1),
    Wrong("job_offer", "app_sha256", b"x"),
    Wrong("job_offer", "vector_spec", b""),
    Wrong("job_offer", "encoding", b""),
    Wrong("job_offer", "evaluation_encoding", bytes((1 << 20) + 1), BIG),
    Wrong("train_request", "broadcast", b"", M, "broadcast"),
    Wrong("train_request", "broadcast", BROADCAST[:-1], M, "cut off"),
    Wrong("train_request", "broadcast", BROADCAST + BROADCAST, M, "more parts"),
    Wrong("train_request", "broadcast", bytes(513), BIG, "broadcast"),
    Wrong("train_request", "log_size", 0),
    Wrong("train_request", "log_size", MAX_LOG_BYTES + 1),
    Wrong("train_request", "log_sha256", b""),
    Wrong("train_request", "chain_head", b""),
    Wrong("train_request", "purpose", "train"),
    Wrong("train_request", "purpose", "query"),
    Wrong("train_request", "purpose", "evaluate."),
    Wrong("train_request", "purpose", "train.a\n"),
    Wrong("train_request", "config", b"{}"),
    Wrong("train_request", "config", b" " * 65_537, BIG),
    Wrong("train_request", "announcement", bytes((3 << 20) + 1), BIG),
    Wrong("roster", "bundles", [bundle(OTHER), bundle(SITE)]),
    Wrong("roster", "bundles", [bundle(SITE), bundle(SITE)]),
    Wrong("roster", "bundles", [bundle(bytes([n]) * 32) for n in range(6)], BIG),
    Wrong("roster", "plan.bases.0.site", OTHER, M, "bases"),
    Wrong("roster", "plan.bases.1.version", 1_000_001),
    Wrong("roster", "plan.ring_bits", 7),
    Wrong("roster", "plan.ring_bits", 33),
    Wrong("roster", "plan.length", 0),
    Wrong("roster", "plan.length", 1001),
    Wrong("roster", "plan.colluders", 0),
    Wrong("roster", "plan.min_survivors", 1),
    Wrong("roster", "plan.dropout_percent", 0),
    Wrong("roster", "plan.dropout_percent", 34),
    Wrong("roster", "plan.encoding", b""),
    Wrong("roster", "plan.chain_head", b""),
    Wrong("roster", "context.attempt", 0),
    Wrong("roster", "context.round", 1_000_001),
    Wrong("roster", "context.manifest_hash", b""),
    Wrong("roster", "context.job_id", ""),
    Wrong("roster", "context.suite", "P\n"),
    Wrong("graph_reveals", "ctx", b""),
    Wrong("graph_reveals", "values", []),
    Wrong("graph_reveals", "values", [HASH, HASH[:-1]]),
    Wrong("graph_reveals", "values", [HASH] * 6, BIG),
    Wrong("share_delivery", "shares", []),
    Wrong("share_delivery", "shares.1.sender", SITE),
    Wrong("share_delivery", "shares.0.ciphertext", b""),
    Wrong("share_delivery", "shares.1.path", [HASH] * 4, BIG),
    Wrong("share_delivery", "shares.1.path", []),
    Wrong("share_delivery", "shares.1.path", [HASH, HASH[:-1]]),
    Wrong("share_delivery", "shares.0.self_seed", b""),
    Wrong("share_delivery", "shares.0.self_share", HASH + b"x"),
    Wrong("share_delivery", "shares.0.mask_share", HASH[:-1]),
    Wrong("survivor_set", "dealt", []),
    Wrong("survivor_set", "dealt", [1, 1, 2]),
    Wrong("survivor_set", "dealt", [2, 1]),
    Wrong("survivor_set", "survivors", [0, 1]),
    Wrong("survivor_set", "survivors", [1, 6]),
    Wrong("survivor_set", "survivors", list(range(1, 7)), BIG),
    Wrong("survivor_quorum", "signatures.1.sender", SITE),
    Wrong("survivor_quorum", "signatures.0.ctx", bytes(32), Reason.WRONG_CONTEXT),
    Wrong("survivor_quorum", "signatures", []),
    Wrong("abort_request", "reason", "a\r\nb"),
    Wrong("attempt_result", "transcript_hash", b""),
    Wrong("attempt_result", "survivors", [2, 1]),
    Wrong("job_ended", "state", "running"),
    Wrong("refused", "reason", "nope"),
    Wrong("refused", "detail", "\x00"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_broken_bound_is_refused_by_name(wrong):
    message = VALID[wrong.kind]()
    target = getattr(message, wrong.kind)
    *way, last = wrong.path.split(".")
    for step in way:
        target = target[int(step)] if step.isdigit() else getattr(target, step)
    if isinstance(wrong.value, list):
        del getattr(target, last)[:]
        getattr(target, last).extend(wrong.value)
    else:
        setattr(target, last, wrong.value)
    with pytest.raises(PeerError) as caught:
        take(message)
    assert caught.value.reason is wrong.reason
    text = str(caught.value.args[0])
    assert text.startswith(wrong.kind)
    assert (wrong.named or wrong.path.split(".")[-1]) in text
    assert text.isprintable()


@pytest.mark.parametrize("message", [from_site(), from_aggregator()])
def test_an_empty_frame_is_refused(message):
    with pytest.raises(PeerError, match="empty or unknown"):
        take(message)


def test_a_roster_without_context_or_plan_is_refused():
    for part in ("context", "plan"):
        message = VALID["roster"]()
        message.roster.ClearField(part)
        with pytest.raises(PeerError, match=f"roster.{part}"):
            take(message)


def test_the_sender_is_the_sessions_and_not_the_frames():
    dealt = take(VALID["dealt_shares"]())
    assert dealt.sender == SITE
    assert b"sender" not in convert.site_message_to_wire(dealt).SerializeToString()


def test_limits_come_from_the_manifest():
    limits = ManifestLimits(65_536, 10, 7)
    manifest = Manifest("market", 1, 1, 4, (), suite=X25519.name, limits=limits)
    assert Limits.of(manifest) == Limits(7, 10, 65_536, X25519)


def test_details_are_made_printable_by_an_honest_sender():
    trace = "Traceback:\n\tboom \x1b[31m" + "x" * 2000
    for message in (JobReply("j", False, "policy", trace), NotReady("j", 1, "internal", trace, 0)):
        sent = convert.site_message_to_wire(message)
        got = convert.site_message_from_wire(sent, SITE)
        assert got.detail.startswith("Traceback:  boom  [31mxx")
        assert len(got.detail) == 1000
    sent = convert.aggregator_message_to_wire(Refused("policy", trace))
    assert convert.aggregator_message_from_wire(sent).detail.isprintable()
