"""Read images: a folder with one sub-folder a class, or a CSV index of file and label.

Gives two columns: ``image``, numbers from 0 to 1 of the declared shape, and ``label``. An image of
another size is scaled; one that says it has more than ``max_pixels`` is refused unread, for a small
file can unpack to anything.
"""

import csv
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_node.data.declared import Declared
from edge_node.data.source import (
    NUMBERS,
    TEXT,
    Block,
    Source,
    SourceColumn,
    Wanted,
    brief,
    keys_of,
    need,
    stamp_files,
)
from privacy.errors import UsageError
from tidegate.toml_table import Span

IMAGE = "image"
LABEL = "label"

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SIDE = Span(1, 1 << 14)


def open_images(declared: Declared) -> Source:
    """Open a folder of images.

    Raises:
        UsageError: The shape is no image's, the folder has no classes, or the index is wrong.
    """
    folder = declared.path()
    if not folder.is_dir():
        raise UsageError(f"{declared.where}: {folder} is no folder of images")
    shape, first = _shape(declared)
    limit = declared.table.whole("max_pixels", Span(1, 1 << 30), 64_000_000)
    index = declared.path("index") if declared.table.has("index") else None
    files, labels = _indexed(declared, folder, index) if index else _classes(declared, folder)
    kind = NUMBERS if labels.dtype.kind == "i" else TEXT
    reader = _ImageReader(declared.where, shape, limit, channels_first=first)

    def read(wanted: Wanted) -> Iterator[Block]:
        size = max(1, min(wanted.block_rows, len(files)))
        for begin in range(0, len(files), size):
            part = files[begin : begin + size]
            block: dict[str, Any] = {}
            if IMAGE in wanted.numbers:
                block[IMAGE] = np.stack([reader.read(path) for path in part])
            if LABEL in wanted.numbers:
                block[LABEL] = labels[begin : begin + size]
            if LABEL in wanted.texts:
                block[LABEL] = keys_of(labels[begin : begin + size])
            yield block

    columns = (SourceColumn(IMAGE, NUMBERS, shape), SourceColumn(LABEL, kind))
    everything = [*files, index] if index else files
    return Source(columns, read, lambda: stamp_files(everything))


def _shape(declared: Declared) -> tuple[tuple[int, ...], bool]:
    """Read the shape, and whether channels come first."""
    shape = tuple(declared.table.wholes("shape", _SIDE, most=3))
    if len(shape) == 3 and (shape[2] in _MODES or shape[0] in _MODES):
        return shape, shape[2] not in _MODES
    raise declared.table.bad(
        "shape",
        "must be [height, width, channels] or [channels, height, width], 1, 3 or 4 channels",
    )


def _classes(declared: Declared, folder: Path) -> tuple[list[Path], NDArray[Any]]:
    """Find the images of each class; its number is its place among the names."""
    there = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    names = declared.categories.get(LABEL, tuple(there))
    strange = sorted(set(there) - set(names))
    if not there or strange:
        what = f"{strange[:5]} are no categories of label" if strange else "it has no sub-folders"
        raise UsageError(f"{declared.where}: {folder}: one sub-folder a class is needed: {what}")
    files: list[Path] = []
    labels: list[str] = []
    for name in there:
        found = [p for p in (folder / name).iterdir() if p.suffix.lower() in _SUFFIXES]
        files += sorted(found)
        labels += [name] * len(found)
    if LABEL in declared.categories:
        return files, np.array(labels, dtype=np.str_)
    return files, np.array([names.index(label) for label in labels], dtype=np.int64)


def _indexed(declared: Declared, folder: Path, index: Path) -> tuple[list[Path], NDArray[Any]]:
    """Read the index: a header line, then file and label a line."""
    try:
        with index.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))[1:]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{declared.where}: {index}: {error}") from error
    root = folder.resolve()
    files = []
    for number, row in enumerate(rows, start=2):
        path = (root / row[0]).resolve() if len(row) == 2 else root
        if not path.is_relative_to(root) or path == root:
            raise UsageError(
                f"{declared.where}: {index} line {number} must be a file below {folder}, a label"
            )
        files.append(path)
    labels = [row[1].strip() for row in rows]
    if LABEL not in declared.categories and all(label.isdecimal() for label in labels):
        return files, np.array([int(label) for label in labels], dtype=np.int64)
    return files, np.array(labels, dtype=np.str_)


class _ImageReader:
    """Decodes images to one shape."""

    def __init__(
        self, where: str, shape: Sequence[int], max_pixels: int, *, channels_first: bool
    ) -> None:
        self._where = where
        self._channels_first = channels_first
        self._max_pixels = max_pixels
        sides = shape[1:] if channels_first else shape[:2]
        self._size = (sides[1], sides[0])  # PIL says width first
        self._mode = _MODES[shape[0] if channels_first else shape[2]]
        self._library = need("PIL.Image")

    def read(self, path: Path) -> NDArray[np.float32]:
        """Decode one image.

        Raises:
            UsageError: It is no image, damaged or too large.
        """
        try:
            with warnings.catch_warnings():
                # PIL's own limit only warns; ours is checked before anything is unpacked.
                warnings.simplefilter("error", self._library.DecompressionBombWarning)
                pixels = self._decode(path)
        except (
            OSError,
            ValueError,
            SyntaxError,
            self._library.DecompressionBombError,
            self._library.DecompressionBombWarning,
        ) as error:
            raise UsageError(f"{self._where}: {path} is no image to use: {brief(error)}") from error
        values = pixels.reshape(self._size[1], self._size[0], -1).astype(np.float32)
        values /= np.float32(255)
        return values.transpose(2, 0, 1) if self._channels_first else values

    def _decode(self, path: Path) -> NDArray[np.uint8]:
        with self._library.open(path, formats=_FORMATS) as image:
            if image.width * image.height > self._max_pixels:
                raise ValueError(f"it has more than max_pixels = {self._max_pixels}")
            converted = image.convert(self._mode)
        if converted.size != self._size:
            converted = converted.resize(self._size, self._library.Resampling.BILINEAR)
        return np.asarray(converted)
