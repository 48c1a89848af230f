"""Image folders: shape, labels, order, and pictures that are none."""

import struct
import zlib

import numpy as np
import pytest

from edge_node.data.loading import load_dataset
from privacy.errors import UsageError

Image = pytest.importorskip("PIL.Image")


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path):
    source = np.random.default_rng(3)
    for name in ("cat/2.png", "cat/1.png", "dog/1.png"):
        save(tmp_path / "pictures" / name, source.integers(0, 256, (4, 5, 3)))
    (tmp_path / "pictures" / "cat" / "notes.txt").write_text("no picture")
    return tmp_path


def load(folder, **changes):
    plug = {"loader": "images", "path": "pictures", "shape": [4, 5, 3]} | changes
    return load_dataset("d", plug, folder)


def pixels(folder, name):
    return np.asarray(Image.open(folder / "pictures" / name), dtype=np.float32) / 255


def test_each_sub_folder_is_a_class_and_values_go_from_0_to_1(folder):
    data = load(folder)
    assert data.schema.names == ("image", "label")
    assert data.schema["image"].shape == (4, 5, 3)
    np.testing.assert_array_equal(data.table_NW[:, -1], [0, 0, 1])
    for row, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png")):
        image = data.table_NW[row, :-1].reshape(4, 5, 3)
        np.testing.assert_array_equal(image, pixels(folder, name))
    assert data.facts["image"].high <= 1


def test_channels_may_come_first(folder):
    last, first = load(folder), load(folder, shape=[3, 4, 5])
    as_last = first.table_NW[:, :-1].reshape(3, 3, 4, 5).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(as_last.reshape(3, -1), last.table_NW[:, :-1])


def test_other_sizes_and_modes_are_brought_to_the_shape(folder):
    save(folder / "pictures" / "dog" / "2.png", np.full((40, 50), 51))
    data = load(folder, shape=[8, 10, 1])
    assert data.schema["image"].shape == (8, 10, 1)
    np.testing.assert_allclose(data.table_NW[3, :-1], 0.2)
    assert load(folder, shape=[4, 4, 4]).schema["image"].size == 64


def test_categories_number_the_classes_alike_at_all_sites(folder):
    classes = ["bird", "cat", "dog"]
    data = load(folder, categories={"label": classes})
    np.testing.assert_array_equal(data.table_NW[:, -1], [1, 1, 2])
    with pytest.raises(UsageError, match="no categories of label"):
        load(folder, categories={"label": ["bird", "cat"]})


def test_an_index_names_files_and_labels(folder):
    (folder / "index.csv").write_text("file,label\ndog/1.png,7\ncat/1.png,3\n")
    data = load(folder, index="index.csv")
    np.testing.assert_array_equal(data.table_NW[:, -1], [7, 3])
    np.testing.assert_array_equal(data.table_NW[0, :-1], pixels(folder, "dog/1.png").reshape(-1))
    (folder / "index.csv").write_text("file,label\ndog/1.png,dog\ncat/1.png,cat\n")
    data = load(folder, index="index.csv", categories={"label": ["cat", "dog"]})
    np.testing.assert_array_equal(data.table_NW[:, -1], [1, 0])
    assert load(folder, index="index.csv").left_out == {"label": "text"}


@pytest.mark.parametrize("line", ["../secret.png,1", "/etc/passwd,1", "cat/1.png", ",1", "a,b,c"])
def test_an_index_leads_nowhere_else(folder, line):
    save(folder / "secret.png", np.zeros((4, 5, 3)))
    (folder / "index.csv").write_text(f"file,label\n{line}\n")
    with pytest.raises(UsageError, match=r"index\.csv line 2"):
        load(folder, index="index.csv")


def bomb(width, height):
    """A PNG that says it has so many pixels."""

    def chunk(kind, body):
        crc = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + crc

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 16))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bomb(60_000, 60_000), "no image to use"),
        (bomb(9_000, 9_000), "max_pixels"),
        (bomb(100, 100_000), "no image to use"),
        (b"", "no image to use"),
        (b"GIF89a not one of the formats", "no image to use"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "no image to use"),
    ],
)
def test_what_is_no_picture_to_use_is_refused_by_name(folder, content, says):
    (folder / "pictures" / "dog" / "2.png").write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        load(folder)
    assert "2.png" in str(caught.value)


def test_a_picture_that_ends_early_is_refused(folder):
    path = folder / "pictures" / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UsageError, match="no image to use"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shape": [4, 5]}, "shape"),
        ({"shape": [5, 5, 2]}, "shape"),
        ({"shape": [0, 5, 3]}, "shape"),
        ({"path": "pictures/cat"}, "no sub-folders"),
        ({"path": "pictures/cat/1.png"}, "no folder of images"),
        ({"index": "gone.csv"}, "no file"),
    ],
)
def test_mistakes_are_named(folder, changes, says):
    with pytest.raises(UsageError, match=says):
        load(folder, **changes)
