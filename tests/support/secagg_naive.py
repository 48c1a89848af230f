"""A second, naive SA-1 (suite P256_SHA256_AES256), written from the design text alone.

It shares no code with ``privacy.secagg`` beyond the message values: own encoding, HKDF from HMAC,
textbook P-256, CTR from single AES blocks, Shamir by powers. Slow on purpose.
"""

import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
A = -3
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
SHAMIR_PRIME = 2**256 + 297


def encode(*parts) -> bytes:
    out = b""
    for part in parts:
        if isinstance(part, int):
            tag, raw = (
                b"i",
                bytes.fromhex(f"{part:x}".zfill(len(f"{part:x}") + len(f"{part:x}") % 2)),
            )
            raw = b"" if part == 0 else raw
        elif isinstance(part, bytes):
            tag, raw = b"b", part
        else:
            tag, raw = b"s", str(part).encode()
        out += tag + bytes.fromhex(f"{len(raw):016x}") + raw
    return out


def digest(*parts) -> bytes:
    return hashlib.sha256(encode(*parts)).digest()


def hkdf(secret: bytes, *info, length: int = 32) -> bytes:
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    out, block, counter = b"", b"", 1
    while len(out) < length:
        block = hmac.new(
            extracted, block + encode(*info) + bytes([counter]), hashlib.sha256
        ).digest()
        out += block
        counter += 1
    return out[:length]


def point_add(p, q):
    if p is None or q is None:
        return p or q
    if p[0] == q[0] and (p[1] + q[1]) % P == 0:
        return None
    if p == q:
        slope = (3 * p[0] * p[0] + A) * pow(2 * p[1], -1, P) % P
    else:
        slope = (q[1] - p[1]) * pow(q[0] - p[0], -1, P) % P
    x = (slope * slope - p[0] - q[0]) % P
    return x, (slope * (p[0] - x) - p[1]) % P


def multiply(k: int, point):
    total = None
    for bit in f"{k:b}":
        total = point_add(total, total)
        if bit == "1":
            total = point_add(total, point)
    return total


def scalar(seed: bytes, label: str) -> int:
    return 1 + int.from_bytes(hkdf(seed, label, length=48), "big") % (ORDER - 1)


def public(seed: bytes, label: str) -> bytes:
    x, y = multiply(scalar(seed, label), G)
    return b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")


def agree(seed: bytes, label: str, peer: bytes) -> bytes:
    point = int.from_bytes(peer[1:33], "big"), int.from_bytes(peer[33:], "big")
    return multiply(scalar(seed, label), point)[0].to_bytes(32, "big")


def stream(key: bytes, length: int, bits: int) -> list[int]:
    aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - one block at a time is what CTR is made of
    words = []
    for counter in range((length + 3) // 4):
        block = aes.update(counter.to_bytes(16, "big"))
        words += [int.from_bytes(block[at : at + 4], "little") for at in (0, 4, 8, 12)]
    return [word % 2**bits for word in words[:length]]


def bundle_seeds(seed: bytes) -> tuple[bytes, bytes]:
    """Return the seeds of the key pairs c and m."""
    return hkdf(seed, "seed-c"), hkdf(seed, "seed-m")


def context_digest(context) -> bytes:
    return digest(
        "tidegate/sa/1",
        context.suite,
        context.consortium_id,
        context.manifest_hash,
        context.job_id,
        context.roster_epoch,
        context.round,
        context.attempt,
    )


def roster_hash(context, bundles) -> bytes:
    bodies = []
    for signed in bundles:
        b = signed.bundle
        bodies.append(
            encode(
                "bundle",
                b.consortium_id,
                b.site,
                b.instance_id,
                b.serial,
                b.c_pk,
                b.m_pk,
                b.r_commitment,
                b.not_after_s,
            )
        )
    return digest("roster", context_digest(context), *bodies)


def plan_hash(plan) -> bytes:
    flat = [value for base in plan.bases for value in (base.site, base.version)]
    return digest(
        "plan",
        plan.encoding,
        plan.ring_bits,
        plan.length,
        plan.colluders,
        plan.min_survivors,
        plan.dropout_percent,
        plan.chain_head,
        len(plan.bases),
        *flat,
    )


def polynomial_shares(secret: bytes, seed: bytes, kind: str, rh: bytes, owner: int, t: int, n: int):
    wide = hkdf(seed, "shamir", 0, kind, rh, owner, length=48 * (t - 1))
    higher = [int.from_bytes(wide[48 * k : 48 * k + 48], "big") for k in range(t - 1)]
    coefficients = [int.from_bytes(secret, "big"), *higher]
    return [
        (sum(a * x**power for power, a in enumerate(coefficients)) % SHAMIR_PRIME).to_bytes(
            33, "big"
        )
        for x in range(1, n + 1)
    ]


def halves(leaves):
    """Split as RFC 6962 does: the left half is the largest power of two below the length."""
    split = 1
    while 2 * split < len(leaves):
        split *= 2
    return leaves[:split], leaves[split:]


def tree_top(leaves) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    left, right = halves(leaves)
    return digest("share-node", tree_top(left), tree_top(right))


def tree_path(leaves, at) -> list[bytes]:
    if len(leaves) == 1:
        return []
    left, right = halves(leaves)
    if at < len(left):
        return [*tree_path(left, at), tree_top(right)]
    return [*tree_path(right, at - len(left)), tree_top(left)]


def dealt_leaves(recipients, ciphertexts, self_shares, mask_shares) -> list[bytes]:
    return [
        digest("share-leaf", j, digest("ciphertext", text), b_share, m_share)
        for j, text, b_share, m_share in zip(
            recipients, ciphertexts, self_shares, mask_shares, strict=True
        )
    ]


def dealt_root(recipients, ciphertexts, self_shares, mask_shares) -> bytes:
    leaves = dealt_leaves(recipients, ciphertexts, self_shares, mask_shares)
    return digest("share-root", len(leaves), tree_top(leaves))


def interpolate(shares: dict[int, bytes]) -> bytes:
    total = 0
    for x, share in shares.items():
        term = int.from_bytes(share, "big")
        for other in shares:
            if other != x:
                term = term * other * pow(other - x, -1, SHAMIR_PRIME)
        total += term
    return (total % SHAMIR_PRIME).to_bytes(32, "big")


def masked(x, me, agreed, b, rh, mh, bits):
    """Return y_i = x_i + PRG(self) + sum of +-PRG(pair) over U2 without i, modulo 2^bits.

    ``agreed`` holds the secret of i's mask key with that of each j, by j.
    """
    length = len(x)
    y = [int(v) + s for v, s in zip(x, stream(hkdf(b, "self", rh, mh), length, bits), strict=True)]
    for j, secret in agreed.items():
        key = hkdf(secret, "pair", rh, mh)
        sign = 1 if me < j else -1
        y = [v + sign * s for v, s in zip(y, stream(key, length, bits), strict=True)]
    return [v % 2**bits for v in y]


def graph_seed(rh: bytes, reveals) -> bytes:
    return digest("graph", rh, *reveals)


def ring(n: int, seed: bytes) -> list[int]:
    """Return the sites in ring order."""
    return [index for _, index in sorted((digest("ring", seed, i), i) for i in range(1, n + 1))]


def ring_neighbours(i: int, n: int, degree: int, seed: bytes) -> list[int]:
    order = ring(n, seed)
    at = order.index(i)
    steps = [s for k in range(1, degree // 2 + 1) for s in (-k, k)]
    return sorted(order[(at + step) % n] for step in steps)
