"""Write the TOML of job files: the standard library only reads it."""

import json
from collections.abc import Mapping
from typing import Any


def toml_text(document: Mapping[str, Any]) -> str:
    """Write a document of scalars, lists, tables and arrays of tables, in the order given.

    Args:
        document: As ``tomllib`` reads it, without dates.
    """
    lines: list[str] = []
    _write(document, (), lines)
    return "\n".join(lines) + "\n"


def _write(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    """Write a table's own values, then its sub-tables, whose headers would else take them in."""
    below: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping) or _is_tables(value):
            below.append((key, value))
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in below:
        inner = (*path, key)
        name = ".".join(map(_key, inner))
        for entry in [value] if isinstance(value, Mapping) else value:
            lines += [""] if lines else []
            lines.append(f"[{name}]" if isinstance(value, Mapping) else f"[[{name}]]")
            _write(entry, inner, lines)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "_").isidentifier()
    return key if bare else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    # JSON's escapes are TOML's too, but for DEL, which JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
