"""Makers of accelerators, and their packages, are named in one module only."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEVICE = ROOT / "edge_node" / "trainer" / "device.py"
NAMES = re.compile(
    r"(?<![a-z])(cuda|cublas|npu|torch_?npu|rocm|rocr|hip|xpu|mps|nvidia|ascend|davinci|kfd"
    r"|hccl|nccl|xccl)(?![a-z])",
    re.IGNORECASE,
)


def words(path):
    """Give the names and strings of a file; comments and docstrings may name whom they like."""
    tree = ast.parse(path.read_text())
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text):
                yield text
            case ast.alias(name=text) | ast.FunctionDef(name=text) | ast.ClassDef(name=text):
                yield text
            case ast.keyword(arg=str(text)) | ast.ImportFrom(module=str(text)):
                yield text


def test_nothing_but_the_device_module_names_a_maker():
    found = {
        (str(file.relative_to(ROOT)), word)
        for folder in ("privacy", "proto/tidegate", "edge_node", "aggregator", "examples")
        for file in (ROOT / folder).rglob("*.py")
        if file != DEVICE and "_pb2" not in file.name
        for word in words(file)
        if NAMES.search(word)
    }
    assert found == set()


def test_the_search_finds_what_it_looks_for():
    assert {word for word in words(DEVICE) if NAMES.search(word)} > {"torch_npu", "nccl", "rocm"}
    assert not NAMES.search("input relationship example")
