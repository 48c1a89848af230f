"""The operator's command line speaks the operator API and imports nothing of the aggregator's."""

import ast
from pathlib import Path

CLI = Path(__file__).parents[2] / "aggregator" / "cli"


def test_the_command_line_imports_no_other_module_of_the_aggregator():
    files = sorted(CLI.glob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}: relative import"
                names = [node.module or ""]
                if node.module == "aggregator":
                    names = [f"aggregator.{alias.name}" for alias in node.names]
            for name in names:
                first = name.split(".")
                assert first[0] != "edge_node", f"{file} imports {name}"
                if first[0] == "aggregator":
                    assert first[1:2] == ["cli"], f"{file} imports {name}"
