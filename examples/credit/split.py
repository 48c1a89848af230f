"""Split Give-Me-Some-Credit into five banks by customer segment, and held-out test data.

The 150,000 customers lie as a CSV inside the wheel ``whynot==0.12.0``, which is read and never
imported. First one customer in five is drawn from the whole market as the consortium's test data.
Each remaining customer goes to the bank whose segment it is in, so no customer is in two files and
none is thrown away. Sizes for seed 0 (train / test, share of defaults in the training data):

    bank-1  never late, with a property loan       60,441 / 15,286    2.5 %
    bank-2  never late, without                    35,184 /  8,726    3.0 %
    bank-3  at worst 30 to 59 days late            13,871 /  3,343   11.9 %
    bank-4  at worst 60 to 89 days late             3,855 /    956   26.1 %
    bank-5  90 days late or more                    6,649 /  1,689   41.7 %

A bank's test data is its segment of the consortium's. Each bank sees one value, or nearly, of
what tells most about default, so alone it ranks its own customers well and the market badly.

    python split.py --wheel whynot-0.12.0-py3-none-any.whl --out data --seed 0

writes ``bank-N/train.npz``, ``bank-N/test.npz`` and ``market/test.npz``: plain float32 arrays named
by column, NaN where a value is missing, nothing pickled.

Shapes: N = rows.
"""

import argparse
import hashlib
import io
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Table = dict[str, NDArray[np.float32]]

WHEEL_SHA256 = "d1cfea71ec740ba69f72c5e2b403c443395112392e4849fda392787b6075e3b9"
ARCHIVE = "whynot/simulators/credit/credit_data.zip"
CSV = "credit_data.csv"
MAX_BYTES = 64 * 1024 * 1024
TEST_SHARE = 0.2
BANKS = ("bank-1", "bank-2", "bank-3", "bank-4", "bank-5")

# The CSV's own header (its first column is a row number) and what we call the columns.
HEADER = {
    "SeriousDlqin2yrs": "default",
    "RevolvingUtilizationOfUnsecuredLines": "utilisation",
    "age": "age",
    "NumberOfTime30-59DaysPastDueNotWorse": "late_30_59",
    "DebtRatio": "debt_ratio",
    "MonthlyIncome": "income",
    "NumberOfOpenCreditLinesAndLoans": "open_lines",
    "NumberOfTimes90DaysLate": "late_90",
    "NumberRealEstateLoansOrLines": "property_loans",
    "NumberOfTime60-89DaysPastDueNotWorse": "late_60_89",
    "NumberOfDependents": "dependents",
}


class DataError(ValueError):
    """The wheel is not the expected one or does not hold the expected table."""


@dataclass(frozen=True)
class Bank:
    """One bank's customers: those it trains on and those kept for testing."""

    name: str
    train: Table
    test: Table


@dataclass(frozen=True)
class Split:
    """The five banks and the consortium's test data, which is the union of theirs."""

    banks: tuple[Bank, ...]
    market_test: Table


def read_table(wheel: Path, sha256: str = WHEEL_SHA256) -> Table:
    """Read the customers out of the wheel.

    Args:
        wheel: The downloaded file.
        sha256: Its expected digest, hex.

    Returns:
        The columns, each float32 of shape (N,), NaN where the CSV says NA.

    Raises:
        DataError: The file is absent, too large, another one, or holds something else.
    """
    try:
        if wheel.stat().st_size > MAX_BYTES:
            raise DataError(f"{wheel} is larger than {MAX_BYTES} bytes; download it again")
        raw = wheel.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {wheel}: {error.strerror}; download it first") from None
    found = hashlib.sha256(raw).hexdigest()
    if found != sha256:
        raise DataError(f"{wheel} has SHA-256 {found}, expected {sha256}; download it again")
    return _parse(_member(_member(raw, ARCHIVE), CSV))


def split(table: Mapping[str, NDArray[np.float32]], seed: int = 0) -> Split:
    """Give every customer to the consortium's test data or to the bank of its segment.

    Args:
        table: Columns, each of shape (N,).
        seed: Of the draw of the test data; the segments have no chance in them.
    """
    rows = len(table["default"])
    order_N = np.random.default_rng(seed).permutation(rows)
    is_test_N = np.zeros(rows, dtype=bool)
    is_test_N[order_N[: round(rows * TEST_SHARE)]] = True
    bank_N = segment(table)
    banks = tuple(
        Bank(
            name,
            train=_rows(table, (bank_N == number) & ~is_test_N),
            test=_rows(table, (bank_N == number) & is_test_N),
        )
        for number, name in enumerate(BANKS)
    )
    return Split(banks, _rows(table, is_test_N))


def segment(table: Mapping[str, NDArray[np.float32]]) -> NDArray[np.int64]:
    """Return each customer's bank as an index into `BANKS`, shape (N,).

    The bureau's codes 96 and 98 stand in all three counts of late payments, so they count as 90
    days late. A missing count is none.
    """
    at_worst = [
        np.nan_to_num(table["late_90"]) > 0,
        np.nan_to_num(table["late_60_89"]) > 0,
        np.nan_to_num(table["late_30_59"]) > 0,
        np.nan_to_num(table["property_loans"]) > 0,
    ]
    return np.select(at_worst, [4, 3, 2, 0], default=1).astype(np.int64)


def write(parts: Split, folder: Path) -> dict[str, Path]:
    """Write every part below a folder, made if absent, and return the files by ``bank/part``."""
    tables = {"market/test": parts.market_test}
    for bank in parts.banks:
        tables |= {f"{bank.name}/train": bank.train, f"{bank.name}/test": bank.test}
    files = {name: folder / f"{name}.npz" for name in tables}
    for name, path in files.items():
        write_table(path, tables[name])
    return files


def write_table(path: Path, table: Mapping[str, NDArray[np.float32]]) -> None:
    """Write one table as an uncompressed npz of plain arrays, its folder made if absent."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    np.savez(path, **table)  # type: ignore[arg-type]


def load_shard(path: Path) -> Table:
    """Read one written part; refuse anything that would need unpickling."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name].astype(np.float32, copy=False) for name in arrays.files}


def _rows(table: Mapping[str, NDArray[np.float32]], keep_N: NDArray[np.bool_]) -> Table:
    return {name: values_N[keep_N] for name, values_N in table.items()}


def _member(archive: bytes, name: str) -> bytes:
    """Unzip one member in memory, whatever size the archive claims it has."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as zipped, zipped.open(name) as member:
            content = member.read(MAX_BYTES + 1)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"the archive holds no readable {name}: {error}") from None
    if len(content) > MAX_BYTES:
        raise DataError(f"{name} unpacks to more than {MAX_BYTES} bytes")
    return content


def _parse(raw: bytes) -> Table:
    """Parse the CSV in one conversion: a loop over 1.8 million fields would take seconds."""
    header, _, body = raw.decode("ascii", errors="replace").replace("\r", "").partition("\n")
    names = header.replace('"', "").split(",")
    if names[1:] != list(HEADER):
        raise DataError(f"{CSV} has the columns {header!r}, expected those of Give-Me-Some-Credit")
    lines = body.strip("\n")
    if not lines:
        raise DataError(f"{CSV} has no rows")
    fields = lines.replace("NA", "nan").replace("\n", ",").split(",")
    rows = lines.count("\n") + 1
    if len(fields) != rows * len(names):
        raise DataError(f"{CSV} has {len(fields)} fields in {rows} rows of {len(names)} columns")
    try:
        cells = np.array(fields, dtype=np.float64).reshape(rows, len(names))
    except ValueError as error:
        raise DataError(f"{CSV} holds something that is not a number: {error}") from None
    columns = cells[:, 1:].T.astype(np.float32, order="C")
    return dict(zip(HEADER.values(), columns, strict=True))


def _main() -> int:
    parser = argparse.ArgumentParser(description="Split the credit data into five banks.")
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        parts = split(read_table(options.wheel), options.seed)
        write(parts, options.out)
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for bank in parts.banks:
        sys.stdout.write(
            f"{bank.name}: {len(bank.train['default'])} to train on, "
            f"{len(bank.test['default'])} to test on\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(_main())
