"""Write secagg.json: vectors of SA-1, good and bad, from the naive implementation of the tests.

Run from the repository root: ``python tests/vectors/make_secagg.py``.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: E402

from tests.support import secagg_naive as naive  # noqa: E402
from tests.support import suites_naive as by_suite  # noqa: E402

KEY = bytes(range(32))


def tagged(part):
    """Write one part of an encoding so that JSON keeps its type."""
    return {"bytes": part.hex()} if isinstance(part, bytes) else part


def encodings() -> dict:
    """Vectors of ``enc``: good ones, and byte strings that decode to nothing."""
    good = [
        (),
        ("",),
        (b"",),
        (0,),
        (1, 255, 256, 2**64),
        ("share", b"\x00\x01", 7),
        ("ab", "c"),
        ("a", "bc"),
        (b"ab",),
        ("é",),
    ]
    head = "73" + "00" * 7
    return {
        "good": [
            {"parts": list(map(tagged, parts)), "encoded": naive.encode(*parts).hex()}
            for parts in good
        ],
        "bad": [
            {"why": "cut off in the header", "encoded": head},
            {"why": "cut off in the value", "encoded": head + "0261"},
            {"why": "unknown tag", "encoded": "78" + "00" * 7 + "0161"},
            {"why": "integer with a leading zero", "encoded": "69" + "00" * 7 + "020001"},
            {"why": "string that is no UTF-8", "encoded": head + "01ff"},
            {"why": "length beyond everything", "encoded": "62" + "ff" * 8},
        ],
    }


def shamir() -> dict:
    """Vectors of Shamir: shares from seeds, and shares to refuse."""
    good = []
    for n, t, secret in ((3, 3, KEY), (5, 4, bytes(32)), (6, 5, b"\xff" * 32), (9, 7, KEY)):
        seed, rh = naive.digest("seed", n), naive.digest("rh", n)
        shares = naive.polynomial_shares(secret, seed, "b-share", rh, 2, t, n)
        good.append(
            {
                "n": n,
                "t": t,
                "secret": secret.hex(),
                "seed": seed.hex(),
                "rh": rh.hex(),
                "owner": 2,
                "shares": [share.hex() for share in shares],
            }
        )
    prime = naive.SHAMIR_PRIME
    over = (2**256).to_bytes(33, "big").hex()
    return {
        "good": good,
        "bad": [
            {"why": "share equal to the prime", "shares": {"1": prime.to_bytes(33, "big").hex()}},
            {"why": "32 bytes", "shares": {"1": "00" * 32}},
            {"why": "34 bytes", "shares": {"1": "00" * 34}},
            {"why": "secret of 2^256", "shares": {"1": over}},
            {"why": "holder 0", "shares": {"0": "00" * 33}},
            {"why": "no share", "shares": {}},
        ],
    }


def merkle() -> dict:
    """Vectors of the tree over a dealer's leaves: roots, and what must lead to another one."""
    good = []
    for recipients in ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4, 5), tuple(range(3, 16, 2))):
        texts, b_shares, m_shares = (
            [naive.digest(name, j) for j in recipients] for name in ("text", "b", "m")
        )
        leaves = naive.dealt_leaves(recipients, texts, b_shares, m_shares)
        good.append(
            {
                "recipients": recipients,
                "ciphertexts": [text.hex() for text in texts],
                "self_shares": [value.hex() for value in b_shares],
                "mask_shares": [value.hex() for value in m_shares],
                "root": naive.dealt_root(recipients, texts, b_shares, m_shares).hex(),
                "paths": [
                    [node.hex() for node in naive.tree_path(leaves, at)]
                    for at in range(len(recipients))
                ],
            }
        )
    return {"good": good}


def keys() -> dict:
    """Vectors of key derivation on P-256, and points to refuse."""
    x, y = naive.G
    good = []
    for name in ("a", "b"):
        seed = naive.digest("bundle", name)
        c_seed, m_seed = naive.bundle_seeds(seed)
        good.append(
            {
                "seed": seed.hex(),
                "c_pk": naive.public(c_seed, "scalar-c").hex(),
                "m_pk": naive.public(m_seed, "scalar-m").hex(),
                "m_agree_with_g": naive.agree(
                    m_seed, "scalar-m", b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
                ).hex(),
            }
        )
    point = bytes.fromhex(good[0]["c_pk"])
    return {
        "good": good,
        "bad": [
            {"why": "off the curve", "point": (point[:-1] + bytes([point[-1] ^ 1])).hex()},
            {"why": "compressed", "point": (b"\x02" + point[1:33]).hex()},
            {"why": "hybrid", "point": (b"\x06" + point[1:]).hex()},
            {"why": "point at infinity", "point": "00"},
            {
                "why": "x not reduced",
                "point": ("04" + naive.P.to_bytes(32, "big").hex() + "00" * 32),
            },
            {"why": "one byte too long", "point": (point + b"\x00").hex()},
        ],
    }


def suites() -> dict:
    """Vectors of each suite: keys of two sites, and what the first seals to the second."""
    rh, plain = naive.digest("rh"), bytes(range(66))
    nonce, aad = bytes([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]), naive.encode(rh, 1, 2)
    out = {}
    for name in (
        "P256_SHA256_AES256",
        "X25519_ED25519_SHA256_AES256",
        "MLKEM768_X25519_ED25519_SHA256_AES256",
    ):
        seeds = [naive.digest("bundle", name) for name in ("a", "b")]
        (c_a, m_a), (c_b, m_b) = map(naive.bundle_seeds, seeds)
        c_pk = [by_suite.transport_public(name, seed) for seed in (c_a, c_b)]
        m_pk = [by_suite.mask_public(name, seed) for seed in (m_a, m_b)]
        kem = by_suite.encapsulate(c_pk[1][32:], KEY)[1] if name.startswith("MLKEM") else b""
        key = by_suite.share_key(name, c_b, *c_pk, rh, kem)
        out[name] = {
            "seeds": [seed.hex() for seed in seeds],
            "c_pk": [value.hex() for value in c_pk],
            "m_pk": [value.hex() for value in m_pk],
            "m_agreed": by_suite.mask_agree(name, m_a, m_pk[1]).hex(),
            "rh": rh.hex(),
            "nonce": nonce.hex(),
            "aad": aad.hex(),
            "plaintext": plain.hex(),
            "sealed": (kem + AESGCM(key).encrypt(nonce, plain, aad)).hex(),
        }
    return out


def main() -> None:
    """Write the file."""
    vectors = {
        "enc": encodings(),
        "hkdf": [
            {
                "secret": KEY.hex(),
                "info": ["self", {"bytes": "0102"}, 3],
                "length": length,
                "out": naive.hkdf(KEY, "self", b"\x01\x02", 3, length=length).hex(),
            }
            for length in (1, 32, 48, 200)
        ],
        "prg": [
            {"key": KEY.hex(), "bits": bits, "words": naive.stream(KEY, 11, bits)}
            for bits in (8, 20, 31, 32)
        ],
        "shamir": shamir(),
        "merkle": merkle(),
        "keys": keys(),
        "suites": suites(),
    }
    text = json.dumps(vectors, indent=1, ensure_ascii=True) + "\n"
    (ROOT / "tests/vectors/secagg.json").write_text(text)


if __name__ == "__main__":
    main()
