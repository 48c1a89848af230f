"""Write the packing, sampler and map vectors with slow, plain arithmetic of their own.

Run from the root of the tree: ``python tests/vectors/write_pipeline_vectors.py``. Nothing of
``privacy`` is used here: big integers pack, a power series gives the Bessel functions, and AES runs
one block at a time.
"""

import hashlib
import json
from bisect import bisect_right
from pathlib import Path

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

HERE = Path(__file__).parent
SCALE = 400  # bits of the fixed point that the sampler's reference computes in


def block(seed, label, position):
    counter = (label << 120) + position
    encryptor = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()  # noqa: S305 - one block of CTR
    return encryptor.update(counter.to_bytes(16, "big"))


def stream(seed, label, length):
    return b"".join(block(seed, label, i) for i in range(-(-length // 16)))[:length]


def seed_of(name):
    return hashlib.sha256(name.encode()).digest()


def packing_vectors():
    good = []
    for bits in range(8, 33):
        for count in (0, 1, 7, 67):
            raw = stream(seed_of(f"packing {bits} {count}"), 0, 4 * count)
            values = [
                int.from_bytes(raw[4 * i : 4 * i + 4], "little") % 2**bits for i in range(count)
            ]
            number = sum(value << (bits * i) for i, value in enumerate(values))
            packed = number.to_bytes((bits * count + 7) // 8, "little")
            good.append({"bits": bits, "values": values, "packed": packed.hex()})
    bad = [
        {"why": "one byte short", "bits": 20, "count": 3, "packed": "00" * 7},
        {"why": "one byte long", "bits": 20, "count": 3, "packed": "00" * 9},
        {"why": "a padding bit set, lowest", "bits": 20, "count": 3, "packed": "00" * 7 + "10"},
        {"why": "a padding bit set, highest", "bits": 9, "count": 1, "packed": "0080"},
        {"why": "bytes where there are no values", "bits": 8, "count": 0, "packed": "00"},
        {"why": "a whole-byte width of wrong length", "bits": 24, "count": 2, "packed": "00" * 5},
    ]
    return {"good": good, "bad": bad}


def bessel(order, variance):
    """Give I_order(variance) * 2^SCALE by its power series, all of whose terms are positive."""
    term = 1 << SCALE
    for m in range(1, order + 1):
        term = term * variance // (2 * m)
    total, m = 0, 0
    while term:
        total += term
        m += 1
        term = term * variance * variance // (4 * m * (m + order))
    return total


def cumulative(variance, reach):
    """Give 2^128 * P(X <= k) for k = -reach .. reach, rounded down."""
    weights = [bessel(k, variance) for k in range(reach + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    running, bounds = 0, []
    for k in range(-reach, reach + 1):
        running += weights[abs(k)]
        bounds.append((running << 128) // total)
    return bounds


def sampler_vectors():
    cases = []
    for variance, reach, count in ((1, 40, 64), (40, 120, 64), (1000, 500, 257)):
        bounds = cumulative(variance, reach)
        seed = seed_of(f"sampler {variance}")
        first = stream(seed, 1, 4 * count)
        samples = []
        for i in range(count):
            head = int.from_bytes(first[4 * i : 4 * i + 4], "little")
            rest = int.from_bytes(block(seed, 2, i)[:12], "little")
            samples.append(bisect_right(bounds, (head << 96) | rest) - reach)
        cases.append({"variance": variance, "seed": seed.hex(), "samples": samples})
    return cases


def map_vectors():
    seed = seed_of("map")
    bits = stream(seed, 3, 12)
    signs = [-1 if bits[i // 8] >> (i % 8) & 1 else 1 for i in range(96)]
    keys = stream(seed, 4, 8 * 96)
    order = sorted(range(96), key=lambda i: (int.from_bytes(keys[8 * i : 8 * i + 8], "little"), i))
    return {"seed": seed.hex(), "signs": signs, "kept": 10, "subset": sorted(order[:10])}


VECTORS = {"packing": packing_vectors, "sampler": sampler_vectors, "map": map_vectors}

if __name__ == "__main__":
    for name, make in VECTORS.items():
        (HERE / f"{name}.json").write_text(json.dumps(make(), separators=(",", ":")) + "\n")
