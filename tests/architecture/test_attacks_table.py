"""docs/attacks.md names a test for every attack of the design; each exists, none is left out."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "attacks.md"
FOLDER = ROOT / "tests" / "integration" / "attacks"

MARKED = (  # secure-aggregation.md, in the order of its marks
    "F-c-absolute F-grinding F-arc F-backup F-slots F-bundle F-later F-charge F-u2-own"
)
LISTED = (  # "Attacks that must have a test each"
    "L-model L-plan L-roster L-u2 L-u3 L-withheld L-replay-attempt L-replay-bundle L-replay-frame"
    " L-rollback L-sybils L-phantoms L-both L-same-key L-3c L-policy L-context L-aad L-commitment"
    " L-dealer L-holder L-frames-truncated L-frames-oversized L-frames-mis-sized"
    " L-frames-bit-flipped L-ring-wrap L-outside L-top-k L-retry L-stock L-two-daemons"
)
PRIVACY = "P-clip P-abort P-published P-metrics P-nmin P-filter P-id P-charge"
PAPER = "D-normal D-loss-0 D-loss-1 D-loss-2 D-loss-3 D-withheld D-u2 D-retry D-crash D-two"
OTHERS = {"control", "not covered"}
NEEDED = {name for names in (MARKED, LISTED, PRIVACY, PAPER) for name in names.split()}


def rows():
    """Give (ids, path of the test's file, its name) of each row."""
    found = []
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 5 or cells[0] in {"id", "---"}:
            continue
        where = re.fullmatch(r"`([^`:]+)::([a-z0-9_]+)`", cells[3])
        assert where is not None, f"no test is named in: {line}"
        path = ROOT / where[1] if "/" in where[1] else FOLDER / where[1]
        found.append((cells[0].split(", "), path, where[2]))
    return found


def names_in(path):
    """Give the names of the test functions of a file."""
    tree = ast.parse(path.read_text())
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_attack_has_a_row():
    covered = {name for names, _, _ in rows() for name in names}
    assert not NEEDED - covered
    assert not covered - NEEDED - OTHERS, "an id that no list has"


def test_every_test_in_the_table_exists():
    missing = [
        f"{path.relative_to(ROOT)}::{name}"
        for _, path, name in rows()
        if not path.exists() or name not in names_in(path)
    ]
    assert not missing


def test_no_attack_test_is_left_out_of_the_table():
    named = {(path, name) for _, path, name in rows()}
    there = {(path, name) for path in FOLDER.glob("test_*.py") for name in names_in(path)}
    assert there
    assert not there - named
