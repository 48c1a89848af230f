"""What is private in Flower is touched in one module, whose contract test names the version."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
BRIDGE = ROOT / "proto" / "tidegate" / "flower_bridge.py"
PUBLIC = {"app", "clientapp", "serverapp"}


def modules(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_only_the_bridge_imports_private_parts_of_flower():
    found = {
        file
        for folder in ("privacy", "proto/tidegate", "edge_node", "aggregator", "examples")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in modules(node)
        if name.split(".")[0] == "flwr" and name.split(".")[1] not in PUBLIC
    }
    assert found == {BRIDGE}
