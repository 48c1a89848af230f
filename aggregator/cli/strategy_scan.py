"""Find in an app's source the strategies that cannot run on secure sums.

The rehearsal refuses what main really makes; this reads the branches that it does not take, without
running anything, and names file and line.
"""

import ast
from collections.abc import Mapping

from privacy.errors import UsageError
from tidegate.jobfile.strategies import REFUSED

_PLACES = ("flwr.serverapp.strategy", "flwr.server.strategy", "flwr.serverapp", "flwr.server")


def refuse_strategies(files: Mapping[str, bytes]) -> None:
    """Refuse an app that makes or derives from a strategy which needs single replies.

    Importing one is no fault: an app may choose among many by its run config.

    Args:
        files: The app's files, contents by path.

    Raises:
        UsageError: Which, in which file and line, why, and what to use instead.
    """
    for path, content in files.items():
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: is no Python file: {error}") from None
        known = _imported(tree)
        for node in ast.walk(tree):
            used = [node.func] if isinstance(node, ast.Call) else []
            used += node.bases if isinstance(node, ast.ClassDef) else []
            for name in filter(None, (_refused(expression, known) for expression in used)):
                line = getattr(node, "lineno", 0)
                raise UsageError(
                    f"{path}, line {line}: the strategy {name} cannot run on secure sums: it"
                    f" {REFUSED[name]}"
                )


def _imported(tree: ast.Module) -> dict[str, str]:
    """Give what each name of a file stands for, as far as imports say it."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                known[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return known


def _refused(expression: ast.expr, known: Mapping[str, str]) -> str:
    """Give the refused strategy that an expression names, or nothing."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.insert(0, expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name) or expression.id not in known:
        return ""
    place, _, name = ".".join([known[expression.id], *parts]).rpartition(".")
    return name if name in REFUSED and place in _PLACES else ""
