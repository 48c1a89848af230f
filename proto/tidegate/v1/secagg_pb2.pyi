from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttemptContext(_message.Message):
    __slots__ = ("suite", "consortium_id", "manifest_hash", "job_id", "roster_epoch", "round", "attempt")
    SUITE_FIELD_NUMBER: _ClassVar[int]
    CONSORTIUM_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_HASH_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ROSTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    suite: str
    consortium_id: str
    manifest_hash: bytes
    job_id: str
    roster_epoch: int
    round: int
    attempt: int
    def __init__(self, suite: _Optional[str] = ..., consortium_id: _Optional[str] = ..., manifest_hash: _Optional[bytes] = ..., job_id: _Optional[str] = ..., roster_epoch: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("consortium_id", "site", "instance_id", "serial", "c_pk", "m_pk", "r_commitment", "not_after_s", "signature")
    CONSORTIUM_ID_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    C_PK_FIELD_NUMBER: _ClassVar[int]
    M_PK_FIELD_NUMBER: _ClassVar[int]
    R_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    consortium_id: str
    site: bytes
    instance_id: bytes
    serial: int
    c_pk: bytes
    m_pk: bytes
    r_commitment: bytes
    not_after_s: int
    signature: bytes
    def __init__(self, consortium_id: _Optional[str] = ..., site: _Optional[bytes] = ..., instance_id: _Optional[bytes] = ..., serial: _Optional[int] = ..., c_pk: _Optional[bytes] = ..., m_pk: _Optional[bytes] = ..., r_commitment: _Optional[bytes] = ..., not_after_s: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class BaseVersion(_message.Message):
    __slots__ = ("site", "version")
    SITE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    site: bytes
    version: int
    def __init__(self, site: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class CohortPlan(_message.Message):
    __slots__ = ("encoding", "ring_bits", "length", "colluders", "min_survivors", "chain_head", "bases", "dropout_percent")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    RING_BITS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    COLLUDERS_FIELD_NUMBER: _ClassVar[int]
    MIN_SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_HEAD_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_PERCENT_FIELD_NUMBER: _ClassVar[int]
    encoding: bytes
    ring_bits: int
    length: int
    colluders: int
    min_survivors: int
    chain_head: bytes
    bases: _containers.RepeatedCompositeFieldContainer[BaseVersion]
    dropout_percent: int
    def __init__(self, encoding: _Optional[bytes] = ..., ring_bits: _Optional[int] = ..., length: _Optional[int] = ..., colluders: _Optional[int] = ..., min_survivors: _Optional[int] = ..., chain_head: _Optional[bytes] = ..., bases: _Optional[_Iterable[_Union[BaseVersion, _Mapping]]] = ..., dropout_percent: _Optional[int] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("context", "bundles", "plan")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    context: AttemptContext
    bundles: _containers.RepeatedCompositeFieldContainer[Bundle]
    plan: CohortPlan
    def __init__(self, context: _Optional[_Union[AttemptContext, _Mapping]] = ..., bundles: _Optional[_Iterable[_Union[Bundle, _Mapping]]] = ..., plan: _Optional[_Union[CohortPlan, _Mapping]] = ...) -> None: ...

class GraphReveal(_message.Message):
    __slots__ = ("ctx", "value")
    CTX_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    value: bytes
    def __init__(self, ctx: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class GraphReveals(_message.Message):
    __slots__ = ("ctx", "values")
    CTX_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    values: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, ctx: _Optional[bytes] = ..., values: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ShareCommitments(_message.Message):
    __slots__ = ("self_seed", "self_shares", "mask_shares")
    SELF_SEED_FIELD_NUMBER: _ClassVar[int]
    SELF_SHARES_FIELD_NUMBER: _ClassVar[int]
    MASK_SHARES_FIELD_NUMBER: _ClassVar[int]
    self_seed: bytes
    self_shares: _containers.RepeatedScalarFieldContainer[bytes]
    mask_shares: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, self_seed: _Optional[bytes] = ..., self_shares: _Optional[_Iterable[bytes]] = ..., mask_shares: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DealtShares(_message.Message):
    __slots__ = ("ctx", "ciphertexts", "commitments", "signature")
    CTX_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXTS_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    ciphertexts: _containers.RepeatedScalarFieldContainer[bytes]
    commitments: ShareCommitments
    signature: bytes
    def __init__(self, ctx: _Optional[bytes] = ..., ciphertexts: _Optional[_Iterable[bytes]] = ..., commitments: _Optional[_Union[ShareCommitments, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class DeliveredShare(_message.Message):
    __slots__ = ("sender", "ciphertext", "self_seed", "self_share", "mask_share", "path", "signature")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXT_FIELD_NUMBER: _ClassVar[int]
    SELF_SEED_FIELD_NUMBER: _ClassVar[int]
    SELF_SHARE_FIELD_NUMBER: _ClassVar[int]
    MASK_SHARE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    sender: bytes
    ciphertext: bytes
    self_seed: bytes
    self_share: bytes
    mask_share: bytes
    path: _containers.RepeatedScalarFieldContainer[bytes]
    signature: bytes
    def __init__(self, sender: _Optional[bytes] = ..., ciphertext: _Optional[bytes] = ..., self_seed: _Optional[bytes] = ..., self_share: _Optional[bytes] = ..., mask_share: _Optional[bytes] = ..., path: _Optional[_Iterable[bytes]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ShareDelivery(_message.Message):
    __slots__ = ("ctx", "shares")
    CTX_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    shares: _containers.RepeatedCompositeFieldContainer[DeliveredShare]
    def __init__(self, ctx: _Optional[bytes] = ..., shares: _Optional[_Iterable[_Union[DeliveredShare, _Mapping]]] = ...) -> None: ...

class SurvivorSet(_message.Message):
    __slots__ = ("ctx", "dealt", "survivors")
    CTX_FIELD_NUMBER: _ClassVar[int]
    DEALT_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    dealt: _containers.RepeatedScalarFieldContainer[int]
    survivors: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ctx: _Optional[bytes] = ..., dealt: _Optional[_Iterable[int]] = ..., survivors: _Optional[_Iterable[int]] = ...) -> None: ...

class SurvivorSignature(_message.Message):
    __slots__ = ("ctx", "sender", "signature")
    CTX_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    sender: bytes
    signature: bytes
    def __init__(self, ctx: _Optional[bytes] = ..., sender: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SurvivorQuorum(_message.Message):
    __slots__ = ("ctx", "signatures")
    CTX_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    signatures: _containers.RepeatedCompositeFieldContainer[SurvivorSignature]
    def __init__(self, ctx: _Optional[bytes] = ..., signatures: _Optional[_Iterable[_Union[SurvivorSignature, _Mapping]]] = ...) -> None: ...

class RevealedShare(_message.Message):
    __slots__ = ("owner", "value")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    owner: int
    value: bytes
    def __init__(self, owner: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class UnmaskShares(_message.Message):
    __slots__ = ("ctx", "self_shares", "mask_shares", "surplus_seeds")
    CTX_FIELD_NUMBER: _ClassVar[int]
    SELF_SHARES_FIELD_NUMBER: _ClassVar[int]
    MASK_SHARES_FIELD_NUMBER: _ClassVar[int]
    SURPLUS_SEEDS_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    self_shares: _containers.RepeatedCompositeFieldContainer[RevealedShare]
    mask_shares: _containers.RepeatedCompositeFieldContainer[RevealedShare]
    surplus_seeds: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, ctx: _Optional[bytes] = ..., self_shares: _Optional[_Iterable[_Union[RevealedShare, _Mapping]]] = ..., mask_shares: _Optional[_Iterable[_Union[RevealedShare, _Mapping]]] = ..., surplus_seeds: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RetryVote(_message.Message):
    __slots__ = ("signer", "signature")
    SIGNER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signer: bytes
    signature: bytes
    def __init__(self, signer: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RetryProof(_message.Message):
    __slots__ = ("ctx", "aborts", "votes", "dealt", "survivors")
    CTX_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    DEALT_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    aborts: _containers.RepeatedCompositeFieldContainer[RetryVote]
    votes: _containers.RepeatedCompositeFieldContainer[RetryVote]
    dealt: _containers.RepeatedScalarFieldContainer[int]
    survivors: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ctx: _Optional[bytes] = ..., aborts: _Optional[_Iterable[_Union[RetryVote, _Mapping]]] = ..., votes: _Optional[_Iterable[_Union[RetryVote, _Mapping]]] = ..., dealt: _Optional[_Iterable[int]] = ..., survivors: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("ctx", "reason")
    CTX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    reason: str
    def __init__(self, ctx: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortSignature(_message.Message):
    __slots__ = ("ctx", "sender", "signature", "accused")
    CTX_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ACCUSED_FIELD_NUMBER: _ClassVar[int]
    ctx: bytes
    sender: bytes
    signature: bytes
    accused: bytes
    def __init__(self, ctx: _Optional[bytes] = ..., sender: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., accused: _Optional[bytes] = ...) -> None: ...
