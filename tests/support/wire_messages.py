"""Hypothesis strategies for every valid message of a session, and of the other services."""

import dataclasses

from hypothesis import strategies as st

from privacy.errors import Reason
from privacy.secagg.keys import P256
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    AttemptContext,
    BaseVersion,
    Bundle,
    CohortPlan,
    DealtShares,
    DeliveredShare,
    GraphReveal,
    GraphReveals,
    RetryProof,
    RetryVote,
    RevealedShare,
    Roster,
    ShareCommitments,
    ShareDelivery,
    SignedBundle,
    SurvivorQuorum,
    SurvivorSet,
    SurvivorSignature,
    UnmaskShares,
)
from tidegate import flower_config
from tidegate import messages as m
from tidegate.broadcast import (
    CHECKPOINT_EVERY,
    MAX_LOG_BYTES,
    Broadcast,
    ContentName,
    OpenedSumName,
)

SENDER = b"\x5a" * 32
COHORT = 5

slugs = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
texts = st.text(max_size=60).filter(str.isprintable)
reasons = st.sampled_from([reason.value for reason in Reason])
rounds = st.integers(0, 1_000_000)
seconds = st.floats(0, 1e6)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=8, max_size=72)
points = st.binary(min_size=64, max_size=64).map(lambda raw: b"\x04" + raw)
ciphertexts = st.binary(min_size=P256.share_ciphertext_bytes, max_size=P256.share_ciphertext_bytes)
blobs = st.binary(min_size=1, max_size=80)
_kinds = (
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=10),
    st.binary(max_size=10),
)
settings = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.one_of(*_kinds, *(st.lists(kind, max_size=4) for kind in _kinds)),
    max_size=5,
)
configs = settings.map(lambda values: flower_config.encode(flower_config.MessageConfig(values)))
index_sets = st.sets(st.integers(1, 200), min_size=1, max_size=8).map(lambda s: tuple(sorted(s)))
site_sets = st.lists(hashes, min_size=2, max_size=COHORT, unique=True).map(sorted)
hash_rows = st.lists(hashes, min_size=COHORT, max_size=COHORT).map(tuple)
paths = st.lists(hashes, min_size=1, max_size=8).map(tuple)
commitments = st.builds(ShareCommitments, hashes, hash_rows, hash_rows)


content_names = st.builds(ContentName, hashes, st.integers(1, 1 << 28))


@st.composite
def broadcasts(draw):
    version = draw(rounds)
    sums = st.builds(
        OpenedSumName, content_names, st.integers(0, max(0, version - 1)), st.integers(1, 1000)
    )
    opened = draw(st.none() | sums) if version else None
    rooted = opened is None or version % CHECKPOINT_EVERY == 0
    checkpoint = draw(content_names if rooted else st.none() | content_names)
    announced = draw(st.none() | st.binary(min_size=1).map(ContentName.of))
    return Broadcast(version, opened, checkpoint, announced)


@st.composite
def train_requests(draw):
    announcement = draw(st.binary(max_size=60))
    announced = ContentName.of(announcement) if announcement else None
    return m.TrainRequest(
        draw(slugs),
        draw(rounds),
        dataclasses.replace(draw(broadcasts()), announcement=announced),
        draw(hashes),
        draw(st.builds(ContentName, hashes, st.integers(1, MAX_LOG_BYTES))),
        draw(st.sampled_from(("train", "evaluate", "train.adapt", "evaluate.final"))),
        draw(st.just(b"") | configs),
        announcement,
    )


def bundles(site):
    bundle = st.builds(
        Bundle,
        consortium_id=slugs,
        site=st.just(site),
        instance_id=st.binary(min_size=16, max_size=16),
        serial=st.integers(0, 2**63 - 1),
        c_pk=points,
        m_pk=points,
        r_commitment=hashes,
        not_after_s=st.integers(0, 2**40),
    )
    return st.builds(SignedBundle, bundle, signatures)


@st.composite
def dealt_shares(draw):
    own = draw(st.integers(0, COHORT - 1))
    texts = [draw(ciphertexts) for _ in range(COHORT)]
    texts[own] = b""
    return DealtShares(draw(hashes), SENDER, tuple(texts), draw(commitments), draw(signatures))


@st.composite
def unmask_shares(draw):
    owners = draw(index_sets)
    cut = draw(st.integers(0, len(owners)))
    value = st.binary(min_size=33, max_size=33)
    revealed = [RevealedShare(owner, draw(value)) for owner in owners]
    seeds = tuple(draw(st.lists(hashes, max_size=4)))
    return UnmaskShares(draw(hashes), SENDER, tuple(revealed[:cut]), tuple(revealed[cut:]), seeds)


@st.composite
def bundle_stocks(draw):
    stock = draw(
        st.lists(bundles(SENDER), min_size=1, max_size=3, unique_by=lambda s: s.bundle.serial)
    )
    return m.BundleStock(tuple(stock))


def signed(kind):
    return st.builds(kind, ctx=hashes, sender=st.just(SENDER), signature=signatures)


@st.composite
def job_replies(draw):
    accepted = draw(st.booleans())
    reason = "" if accepted else draw(reasons)
    return m.JobReply(draw(slugs), accepted, reason, draw(texts))


site_messages = st.one_of(
    st.builds(
        m.Hello,
        protocol=texts,
        instance_id=st.binary(min_size=16, max_size=16),
        device=texts,
        jobs=st.lists(slugs, max_size=3, unique=True).map(tuple),
    ),
    bundle_stocks(),
    job_replies(),
    st.builds(m.Ready, slugs, rounds, rounds, seconds, seconds, seconds, seconds),
    st.builds(m.NotReady, slugs, rounds, reasons, texts, seconds),
    dealt_shares(),
    st.builds(GraphReveal, hashes, st.just(SENDER), hashes),
    signed(SurvivorSignature),
    unmask_shares(),
    st.builds(AbortSignature, hashes, st.just(SENDER), signatures, st.one_of(st.just(b""), hashes)),
    st.builds(m.AttemptFailed, hashes, reasons, texts),
)


@st.composite
def rosters(draw):
    sites = draw(site_sets)
    context = draw(
        st.builds(
            AttemptContext,
            suite=texts,
            consortium_id=slugs,
            manifest_hash=hashes,
            job_id=slugs,
            roster_epoch=st.integers(0, 2**32 - 1),
            round=rounds,
            attempt=st.integers(1, 100_000),
        )
    )
    plan = draw(
        st.builds(
            CohortPlan,
            encoding=blobs,
            ring_bits=st.integers(8, 32),
            length=st.integers(1, 1 << 26),
            colluders=st.integers(1, 100),
            min_survivors=st.integers(101, 200),
            dropout_percent=st.integers(1, 33),
            chain_head=hashes,
            bases=st.just(tuple(BaseVersion(site, draw(rounds)) for site in sites)),
        )
    )
    return Roster(context, tuple(draw(bundles(site)) for site in sites), plan)


@st.composite
def share_deliveries(draw):
    shares = [
        DeliveredShare(
            sender,
            draw(ciphertexts),
            *(draw(hashes) for _ in range(3)),
            draw(paths),
            draw(signatures),
        )
        for sender in draw(site_sets)
    ]
    return ShareDelivery(draw(hashes), tuple(shares))


@st.composite
def quorums(draw):
    ctx = draw(hashes)
    sites = draw(site_sets)
    return SurvivorQuorum(
        ctx, tuple(SurvivorSignature(ctx, site, draw(signatures)) for site in sites)
    )


@st.composite
def retry_proofs(draw):
    sites = draw(site_sets)
    cut = draw(st.integers(0, len(sites)))
    dealt, survivors = draw(index_sets), draw(index_sets)
    aborts = [RetryVote(site, draw(signatures)) for site in sites[:cut]]
    votes = [RetryVote(site, draw(signatures), dealt, survivors) for site in sites[cut:]]
    return RetryProof(draw(hashes), (*aborts, *votes))


aggregator_messages = st.one_of(
    st.builds(GraphReveals, hashes, st.lists(hashes, min_size=2, max_size=9).map(tuple)),
    st.builds(m.Welcome, texts, blobs, signatures),
    st.builds(m.Welcome, texts, st.just(b""), st.just(b"")),
    st.builds(m.BundleRequest, st.integers(1, 256)),
    st.builds(
        m.JobOffer,
        slugs,
        blobs,
        hashes,
        st.integers(1, 1 << 20),
        blobs,
        blobs,
        st.just(b"") | blobs,
    ),
    train_requests(),
    rosters(),
    share_deliveries(),
    st.builds(SurvivorSet, hashes, index_sets, index_sets),
    quorums(),
    st.builds(AbortRequest, hashes, texts),
    retry_proofs(),
    st.builds(m.AttemptResult, hashes, hashes, index_sets),
    st.builds(m.JobEnded, slugs, st.sampled_from(["finished", "failed", "stopped"]), texts),
    st.builds(m.Refused, reasons, texts),
)
