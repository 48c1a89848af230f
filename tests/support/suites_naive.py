"""X25519 and ML-KEM-768 from their standards, as plainly as can be, to hold the libraries against.

RFC 7748 section 5; FIPS 203 (August 2024), algorithms 3 to 18. Slow, not constant-time: tests only.
"""

import hashlib

from tests.support import secagg_naive as naive

# --- X25519 --------------------------------------------------------------------------------------

PRIME = 2**255 - 19


def x25519(scalar: bytes, u_bytes: bytes) -> bytes:
    """Multiply a point by a scalar, by the Montgomery ladder of RFC 7748."""
    k = int.from_bytes(scalar, "little")
    k = (k & ~7 & ((1 << 255) - 1)) | (1 << 254)
    u = int.from_bytes(u_bytes, "little") & ((1 << 255) - 1)
    x2, z2, x3, z3 = 1, 0, u, 1
    for t in reversed(range(255)):
        bit = k >> t & 1
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % PRIME, u * (da - cb) ** 2 % PRIME
        aa, bb = a * a % PRIME, b * b % PRIME
        x2, z2 = aa * bb % PRIME, (aa - bb) * (aa + 121665 * (aa - bb)) % PRIME
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, -1, PRIME) % PRIME).to_bytes(32, "little")


def x25519_public(seed: bytes, label: str) -> bytes:
    return x25519(naive.hkdf(seed, label), (9).to_bytes(32, "little"))


def x25519_agree(seed: bytes, label: str, peer: bytes) -> bytes:
    return x25519(naive.hkdf(seed, label), peer)


# --- ML-KEM-768 ----------------------------------------------------------------------------------

Q, K, DU, DV = 3329, 3, 10, 4
ZETAS = [pow(17, int(f"{i:07b}"[::-1], 2), Q) for i in range(128)]
GAMMAS = [pow(17, 2 * int(f"{i:07b}"[::-1], 2) + 1, Q) for i in range(128)]


def hash_g(data: bytes) -> tuple[bytes, bytes]:
    digest = hashlib.sha3_512(data).digest()
    return digest[:32], digest[32:]


def bits_of(data: bytes) -> list[int]:
    return [byte >> k & 1 for byte in data for k in range(8)]


def encode(values: list[int], d: int) -> bytes:
    bits = [value >> k & 1 for value in values for k in range(d)]
    return bytes(sum(bits[at + k] << k for k in range(8)) for at in range(0, len(bits), 8))


def decode(data: bytes, d: int) -> list[int]:
    bits = bits_of(data)
    return [sum(bits[at + k] << k for k in range(d)) for at in range(0, len(bits), d)]


def compress(values: list[int], d: int) -> list[int]:
    return [((value << d) + Q // 2) // Q % (1 << d) for value in values]


def decompress(values: list[int], d: int) -> list[int]:
    return [(value * Q + (1 << (d - 1))) >> d for value in values]


def sample_ntt(seed: bytes) -> list[int]:
    stream, found = hashlib.shake_128(seed).digest(3000), []
    for at in range(0, len(stream), 3):
        first = stream[at] + 256 * (stream[at + 1] % 16)
        second = stream[at + 1] // 16 + 16 * stream[at + 2]
        found += [value for value in (first, second) if value < Q]
    return found[:256]


def sample_small(seed: bytes, nonce: int) -> list[int]:
    bits = bits_of(hashlib.shake_256(seed + bytes([nonce])).digest(128))
    return [
        (bits[at] + bits[at + 1] - bits[at + 2] - bits[at + 3]) % Q for at in range(0, len(bits), 4)
    ]


def ntt(f: list[int]) -> list[int]:
    f, i, length = list(f), 1, 128
    while length >= 2:
        for start in range(0, 256, 2 * length):
            for j in range(start, start + length):
                t = ZETAS[i] * f[j + length] % Q
                f[j + length], f[j] = (f[j] - t) % Q, (f[j] + t) % Q
            i += 1
        length //= 2
    return f


def inverse_ntt(f: list[int]) -> list[int]:
    f, i, length = list(f), 127, 2
    while length <= 128:
        for start in range(0, 256, 2 * length):
            for j in range(start, start + length):
                t = f[j]
                f[j] = (t + f[j + length]) % Q
                f[j + length] = ZETAS[i] * (f[j + length] - t) % Q
            i -= 1
        length *= 2
    return [value * 3303 % Q for value in f]


def times(f: list[int], g: list[int]) -> list[int]:
    out = []
    for i in range(128):
        a0, a1, b0, b1 = f[2 * i], f[2 * i + 1], g[2 * i], g[2 * i + 1]
        out += [(a0 * b0 + a1 * b1 * GAMMAS[i]) % Q, (a0 * b1 + a1 * b0) % Q]
    return out


def add(*polynomials: list[int]) -> list[int]:
    return [sum(values) % Q for values in zip(*polynomials, strict=True)]


def dot(left: list[list[int]], right: list[list[int]]) -> list[int]:
    return add(*(times(f, g) for f, g in zip(left, right, strict=True)))


def matrix(rho: bytes) -> list[list[list[int]]]:
    return [[sample_ntt(rho + bytes([j, i])) for j in range(K)] for i in range(K)]


def kem_keys(seed: bytes) -> tuple[bytes, bytes]:
    """Give (encapsulation key, decapsulation key) of a seed (d, z) of 64 bytes."""
    d, z = seed[:32], seed[32:]
    rho, sigma = hash_g(d + bytes([K]))
    s = [ntt(sample_small(sigma, n)) for n in range(K)]
    e = [ntt(sample_small(sigma, K + n)) for n in range(K)]
    t = [add(dot(row, s), e[i]) for i, row in enumerate(matrix(rho))]
    ek = b"".join(encode(f, 12) for f in t) + rho
    dk = b"".join(encode(f, 12) for f in s)
    return ek, dk + ek + hashlib.sha3_256(ek).digest() + z


def pke_encrypt(ek: bytes, message: bytes, coins: bytes) -> bytes:
    t = [decode(ek[384 * i : 384 * i + 384], 12) for i in range(K)]
    a = matrix(ek[384 * K :])
    y = [ntt(sample_small(coins, n)) for n in range(K)]
    u = [
        add(inverse_ntt(dot([a[j][i] for j in range(K)], y)), sample_small(coins, K + i))
        for i in range(K)
    ]
    mu = decompress(decode(message, 1), 1)
    v = add(inverse_ntt(dot(t, y)), sample_small(coins, 2 * K), mu)
    return b"".join(encode(compress(f, DU), DU) for f in u) + encode(compress(v, DV), DV)


def encapsulate(ek: bytes, message: bytes) -> tuple[bytes, bytes]:
    """Give (shared secret, ciphertext), its randomness being given."""
    secret, coins = hash_g(message + hashlib.sha3_256(ek).digest())
    return secret, pke_encrypt(ek, message, coins)


def decapsulate(dk: bytes, ciphertext: bytes) -> bytes:
    s = [decode(dk[384 * i : 384 * i + 384], 12) for i in range(K)]
    ek, h, z = dk[384 * K : 768 * K + 32], dk[768 * K + 32 : 768 * K + 64], dk[-32:]
    u = [
        ntt(decompress(decode(ciphertext[32 * DU * i : 32 * DU * (i + 1)], DU), DU))
        for i in range(K)
    ]
    v = decompress(decode(ciphertext[32 * DU * K :], DV), DV)
    w = [(x - y) % Q for x, y in zip(v, inverse_ntt(dot(s, u)), strict=True)]
    message = encode(compress(w, 1), 1)
    secret, coins = hash_g(message + h)
    if pke_encrypt(ek, message, coins) != ciphertext:
        return hashlib.shake_256(z + ciphertext).digest(32)
    return secret


# --- share transport of each suite ---------------------------------------------------------------


def transport_public(suite: str, c_seed: bytes) -> bytes:
    if suite.startswith("P256"):
        return naive.public(c_seed, "scalar-c")
    agreed = x25519_public(c_seed, "scalar-c")
    if suite.startswith("X25519"):
        return agreed
    return agreed + kem_keys(naive.hkdf(c_seed, "kem-c", length=64))[0]


def mask_public(suite: str, m_seed: bytes) -> bytes:
    if suite.startswith("P256"):
        return naive.public(m_seed, "scalar-m")
    return x25519_public(m_seed, "scalar-m")


def mask_agree(suite: str, m_seed: bytes, peer: bytes) -> bytes:
    agree = naive.agree if suite.startswith("P256") else x25519_agree
    return agree(m_seed, "scalar-m", peer)


def share_key(suite: str, reader_seed: bytes, dealer: bytes, reader: bytes, rh: bytes, text: bytes):
    """Give the key of what a dealer sealed to the reader, from the reader's seed and both c_pk."""
    if suite.startswith("P256"):
        return naive.hkdf(naive.agree(reader_seed, "scalar-c", dealer), "share-key", rh)
    agreed = x25519_agree(reader_seed, "scalar-c", dealer[:32])
    if suite.startswith("X25519"):
        return naive.hkdf(agreed, "share-key", rh)
    _, dk = kem_keys(naive.hkdf(reader_seed, "kem-c", length=64))
    kem = text[:1088]
    return naive.hkdf(agreed + decapsulate(dk, kem), "share-key", rh, kem, dealer, reader)
