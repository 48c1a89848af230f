"""Measure the stages between a gradient and the wire, one core: values per second of each.

    python -m benchmarks.encode [--length 4194304] [--neighbours 4] [--json FILE]

Each stage stands beside a named baseline that does the least which any implementation must do: the
same bytes copied, summed, or encrypted by the same AES-256-CTR, or the same distribution drawn from
numpy's generator, which is not cryptographic. The ratio is the stage's time over its baseline's.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from aggregator.cli.output import table_of
from aggregator.fold import Fold, pick_device
from benchmarks import figures
from privacy import ring
from privacy.compress import MapKind
from privacy.delta import Delta
from privacy.encode import encode_delta
from privacy.noise import NoisedUpdate, skellam_table
from privacy.pipeline import EncodingPlan, Mode, RecordAccumulator
from privacy.planning import CohortRules, PrivacyTerms, derive_encoding
from privacy.quantise import Rounding
from privacy.secagg import masking
from privacy.secagg.messages import MaskTerm
from privacy.spec import TensorSpec, VectorSpec

RECORDS = 64
RECORD_LENGTH = 10_029
"""Coordinates of one record's gradient: the model of ``rounds.py``."""

WHOLE_PATH_BITS = (8, 10, 16, 24)
"""Ring widths of the whole paths: compressed jobs of 16 to 1,000 sites take 8 to 10 bits."""

RULES = CohortRules(colluders=1, min_survivors=4, members=5)
SEED = bytes(range(32))


@dataclass(frozen=True)
class Stage:
    """One stage and its baseline; both work through ``values`` values in one call."""

    name: str
    values: int
    work: Callable[[], object]
    baseline_name: str
    baseline: Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """What was measured of a stage."""

    stage: str
    million_values_per_s: float
    ns_per_value: float
    baseline: str
    ratio: float


class Bytes:
    """Packed bytes in memory, read as the aggregator reads its spool."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from an offset on."""
        return self._data[offset : offset + size]


def record_plan(length: int) -> EncodingPlan:
    """Derive the plan of a record-distributed job with a gradient of this length."""
    return derive_encoding(_terms(Mode.RECORD_DISTRIBUTED), _spec(length), RULES, SEED)


def site_plan(length: int) -> EncodingPlan:
    """Derive the plan of a job in mode none with a delta of this length."""
    return derive_encoding(_terms(Mode.NONE), _spec(length), RULES, SEED)


def stages(length: int, neighbours: int) -> list[Stage]:
    """Lay out every stage with its inputs.

    Args:
        length: Values of a vector.
        neighbours: Other members of the cohort: pairwise masks of one site.
    """
    draw = np.random.default_rng(0)
    plan = record_plan(length)
    bits = plan.bits
    values_d = draw.integers(0, 1 << bits, length, dtype=np.uint32)
    update = NoisedUpdate(draw.integers(-1000, 1000, length, dtype=np.int64))
    terms = [MaskTerm(bytes([index]) * 32, 1) for index in range(neighbours + 1)]
    packed = ring.pack(values_d, bits)
    fold = Fold(length, bits, pick_device("cpu"))
    aes = partial(_aes_ctr, length * 4)
    copy = partial(np.copy, values_d)
    variance = plan.noise_variance
    total_d = values_d.copy()
    return [
        *_rounding_stages(length, draw),
        *_whole_paths(length, draw),
        Stage(
            f"Skellam noise, V={variance}",
            length,
            partial(skellam_table(variance).sample, SEED, length),
            "numpy poisson - poisson",
            partial(_poisson_noise, draw, variance, length),
        ),
        Stage(
            f"mask, {neighbours} neighbours + self",
            length,
            partial(masking.mask, update, terms, bits),
            f"{neighbours + 1} x AES-256-CTR alone",
            partial(_repeat, aes, neighbours + 1),
        ),
        Stage(f"pack to {bits} bits", length, partial(ring.pack, values_d, bits), "copy", copy),
        Stage(
            f"unpack from {bits} bits",
            length,
            partial(ring.unpack, packed, length, bits),
            "copy",
            copy,
        ),
        Stage(
            "fold one upload",
            length,
            partial(fold.add, Bytes(packed)),
            "add unpacked",
            partial(np.add, total_d, values_d, out=total_d),
        ),
        Stage(
            f"unmask, {neighbours + 1} self masks",
            length,
            partial(masking.unmask, total_d, terms, bits),
            f"{neighbours + 1} x AES-256-CTR alone",
            partial(_repeat, aes, neighbours + 1),
        ),
    ]


def measure(stage: Stage, repeats: int) -> Figure:
    """Time a stage and its baseline."""
    stage_s = figures.median_s(stage.work, repeats)
    baseline_s = figures.median_s(stage.baseline, repeats)
    return Figure(
        stage=stage.name,
        million_values_per_s=stage.values / stage_s / 1e6,
        ns_per_value=1e9 * stage_s / stage.values,
        baseline=stage.baseline_name,
        ratio=stage_s / baseline_s,
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=1 << 22, help="values of a vector")
    parser.add_argument("--neighbours", type=int, default=4, help="other sites of the cohort")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs; the median counts")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    found = [
        measure(stage, options.repeats) for stage in stages(options.length, options.neighbours)
    ]
    rows = [
        (
            figure.stage,
            f"{figure.million_values_per_s:,.1f}",
            f"{figure.ns_per_value:.2f}",
            figure.baseline,
            f"{figure.ratio:.1f}",
        )
        for figure in found
    ]
    columns = ("stage", "#million values/s", "#ns/value", "baseline", "#times baseline")
    figures.console().print(table_of(f"{options.length:,} values, one core", columns, rows))
    result = {"length": options.length, "stages": [asdict(figure) for figure in found]}
    figures.write_json(options.json, result)


def _rounding_stages(length: int, draw: np.random.Generator) -> list[Stage]:
    grads_ND = draw.normal(0, 0.01, (RECORDS, RECORD_LENGTH)).astype(np.float32)
    metrics_NM = np.zeros((RECORDS, 0), np.float32)
    by_record = record_plan(RECORD_LENGTH)
    accumulator = RecordAccumulator(by_record)
    by_site = site_plan(length)
    delta_D = draw.normal(0, 0.01, length).astype(np.float32)
    delta = Delta(delta_D, by_site.spec_digest)
    return [
        Stage(
            f"clip + round, {RECORDS} records of {RECORD_LENGTH:,}",
            RECORDS * RECORD_LENGTH,
            partial(accumulator.add, grads_ND, metrics_NM),
            "round the sum in float32",
            lambda: np.rint(grads_ND.sum(axis=0) * np.float32(by_record.scale)),
        ),
        Stage(
            "clip + round, one delta (mode none)",
            length,
            partial(encode_delta, by_site, delta),
            "round in float32",
            lambda: np.rint(delta_D * np.float32(by_site.scale)),
        ),
    ]


def _whole_paths(length: int, draw: np.random.Generator) -> list[Stage]:
    """Lay out the way of a dense delta to masked, packed bytes, the masks of neighbours apart."""
    delta_D = draw.normal(0, 1e-3, length).astype(np.float32)
    own_mask = [MaskTerm(SEED, 1)]

    def encode_mask_pack(plan: EncodingPlan, delta: Delta) -> memoryview:
        return masking.mask_and_pack(encode_delta(plan, delta), own_mask, plan.bits)

    wide = replace(site_plan(length), clip_gradient=1e-3 * 2 * length**0.5)
    found = []
    for kind in (MapKind.IDENTITY, MapKind.ROTATION):
        for bits in WHOLE_PATH_BITS:  # 7 standard deviations fill half the ring
            plan = replace(wide, map_kind=kind, bits=bits, scale=2.0 ** (bits - 2) / 7e-3)
            work = partial(encode_mask_pack, plan, Delta(delta_D, plan.spec_digest))
            name = f"delta to packed bytes, {kind}, {bits} bits, own mask"
            found.append(Stage(name, length, work, "copy", partial(np.copy, delta_D)))
    return found


def _terms(mode: Mode) -> PrivacyTerms:
    private = mode is Mode.RECORD_DISTRIBUTED
    return PrivacyTerms(
        mode=mode,
        rounds=60,
        epsilon=3.0 if private else 0.0,
        delta_dp=1e-5 if private else 0.0,
        sampling_rate=0.02 if private else 1.0,
        clipping_norm=1.0,
        metrics_norm=0.0,
        metrics_length=0,
        expected_batch_size=200,
        max_records=100_000,
        rounding=Rounding.RECORD,
        noise_multiplier=1.0 if private else None,
        map_kind=MapKind.IDENTITY,
        keep=1.0,
        signal_range=0.5,
    )


def _spec(length: int) -> VectorSpec:
    return VectorSpec((TensorSpec("flat", (length,)),))


def _poisson_noise(draw: np.random.Generator, variance: int, count: int) -> NDArray[np.int64]:
    return draw.poisson(variance / 2, count) - draw.poisson(variance / 2, count)


def _aes_ctr(size: int) -> int:
    """Encrypt zeros in pieces that stay in the cache; return the bytes done."""
    stream = Cipher(algorithms.AES(SEED), modes.CTR(bytes(16))).encryptor()
    piece = memoryview(bytes(1 << 17))
    out = bytearray(len(piece) + 15)
    return sum(
        stream.update_into(piece[: min(len(piece), size - begin)], out)
        for begin in range(0, size, len(piece))
    )


def _repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


if __name__ == "__main__":
    main()
