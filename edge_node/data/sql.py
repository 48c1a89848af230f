"""Read the rows of one SELECT from a database, and change nothing there.

The connection is read-only where the backend can say so (SQLite, PostgreSQL, MySQL and MariaDB),
and one SELECT is all that is accepted. The address, which may hold a password, comes from a private
file or an environment variable, never from site.toml, and no message repeats it.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import sqlalchemy
from numpy.typing import NDArray
from sqlalchemy import event
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from edge_node.data.declared import Declared
from edge_node.data.source import NUMBERS, TEXT, Block, Source, SourceColumn, Wanted, brief, keys_of
from privacy.errors import UsageError
from tidegate.keys import read_private

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(\.[A-Za-z_][A-Za-z0-9_$]{0,62})?")
_QUERY = re.compile(r"[^\x00]{1,16384}", re.DOTALL)
# What is no statement: texts, quoted names and comments. Dollar quotes are PostgreSQL's.
_QUOTED = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/", re.DOTALL
)
_WRITES = re.compile(
    r"\b(insert|update|delete|merge|replace\s+into|drop|alter|create|truncate|grant|revoke|attach|"
    r"detach|pragma|vacuum|copy|call|exec|execute|into|lock|set|begin|commit)\b",
    re.IGNORECASE,
)
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
}
_PEEK_ROWS = 1000


def open_sql(declared: Declared) -> Source:
    """Open a table or a query of a database.

    Raises:
        UsageError: The address or the query is not usable, or the database says no.
    """
    engine = _engine(declared)
    statement = _statement(declared)
    names, first = _peek(declared, engine, statement)
    columns = tuple(
        SourceColumn(name, _kind([row[place] for row in first])) for place, name in enumerate(names)
    )

    def read(wanted: Wanted) -> Iterator[Block]:
        places = {name: names.index(name) for name in (*wanted.numbers, *wanted.texts)}
        with _errors(declared), engine.connect() as connection:
            options = {"stream_results": True, "yield_per": wanted.block_rows}
            result = connection.execute(statement, execution_options=options)
            for rows in result.partitions():
                parts = {name: [row[place] for row in rows] for name, place in places.items()}
                numbers = {name: _numbers(declared, name, parts[name]) for name in wanted.numbers}
                texts = {name: _keys(parts[name]) for name in wanted.texts}
                yield {**numbers, **texts}

    return Source(columns, read)


def single_select(query: str) -> bool:
    """Say whether a query is one SELECT that writes nowhere, as far as its words tell.

    What they do not tell, such as a function that writes, the read-only connection must stop.
    """
    bare = _QUOTED.sub(" ", query).strip().rstrip(";").strip()
    starts_well = re.match(r"(select|with)\b", bare, re.IGNORECASE) is not None
    return starts_well and ";" not in bare and _WRITES.search(bare) is None


def _statement(declared: Declared) -> Any:
    table = declared.table
    if table.has("query") == table.has("table"):
        raise UsageError(f"{declared.where} needs either query or table")
    if table.has("table"):
        schema, _, name = table.text("table", _TABLE, "a table's name").rpartition(".")
        return sqlalchemy.select(sqlalchemy.text("*")).select_from(
            sqlalchemy.table(name, schema=schema or None)
        )
    query = table.text("query", _QUERY, "one SELECT statement")
    if not single_select(query):
        raise UsageError(f"{declared.where} query must be one SELECT statement that only reads")
    # A colon in it is the query's own: it has no parameters.
    return sqlalchemy.text(query.strip().rstrip(";").replace(":", r"\:"))


def _engine(declared: Declared) -> Engine:
    url = _url(declared)
    backend = url.get_backend_name()
    if backend == "sqlite":
        url = _sqlite_read_only(declared, url)
    try:
        engine = sqlalchemy.create_engine(url, poolclass=NullPool, hide_parameters=True)
    except (ImportError, SQLAlchemyError, TypeError) as error:
        missing = error.name if isinstance(error, ImportError) else type(error).__name__
        message = f"{declared.where}: no driver for {backend} databases here: {missing}"
        raise UsageError(message) from None

    def make_read_only(connection: Any, _record: object) -> None:
        if backend in _READ_ONLY:
            cursor = connection.cursor()
            cursor.execute(_READ_ONLY[backend])
            cursor.close()
            connection.commit()

    event.listen(engine, "connect", make_read_only)
    return engine


def _url(declared: Declared) -> URL:
    table = declared.table
    if table.has("url_file") == table.has("url_env"):
        raise UsageError(
            f"{declared.where} needs either url_file, a file of mode 0600, or url_env, the name of"
            " an environment variable: the address may hold a password"
        )
    if table.has("url_file"):
        raw = read_private(declared.path("url_file")).decode("utf-8", "replace").strip()
    else:
        name = table.text("url_env", _VARIABLE, "an environment variable's name")
        raw = os.environ.get(name, "").strip()
        if not raw:
            raise UsageError(f"{declared.where}: the environment variable {name} is not set")
    try:
        return sqlalchemy.make_url(raw)
    except (ArgumentError, ValueError):  # its message may repeat the address
        message = f"{declared.where}: the address is no SQLAlchemy URL (dialect://user@host/name)"
        raise UsageError(message) from None


def _sqlite_read_only(declared: Declared, url: URL) -> URL:
    """Point at an existing SQLite file in mode ro; a relative path is relative to site.toml."""
    name = url.database or ""
    if not name or name == ":memory:" or name.startswith("file:"):
        raise UsageError(f"{declared.where}: the address must be sqlite:///PATH of a file")
    path = declared.folder / name
    if not path.exists():
        raise UsageError(f"{declared.where}: there is no database file {path}")
    return URL.create(
        "sqlite", database=path.absolute().as_uri(), query={"mode": "ro", "uri": "true"}
    )


def _peek(declared: Declared, engine: Engine, statement: Any) -> tuple[list[str], Sequence[Any]]:
    """Give the columns' names and some rows."""
    with _errors(declared), engine.connect() as connection:
        result = connection.execute(statement, execution_options={"stream_results": True})
        names = [str(name) for name in result.keys()]  # noqa: SIM118 - a result, no dict
        first = result.fetchmany(_PEEK_ROWS)
        result.close()
    if len(set(names)) != len(names):
        raise UsageError(f"{declared.where}: the query gives two columns one name: use AS")
    return names, first


@contextlib.contextmanager
def _errors(declared: Declared) -> Iterator[None]:
    """Say what the database said, in its driver's words and without the address."""
    try:
        yield
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None)
        kind = type(cause if cause is not None else error).__name__
        secret = _url(declared).password
        whole = str(cause or "")
        shown = brief(whole.replace(str(secret), "***") if secret else whole)
        raise UsageError(f"{declared.where}: the database says {kind}: {shown}") from None


def _kind(values: Sequence[Any]) -> str:
    known = [value for value in values if value is not None]
    if all(isinstance(value, int | float | Decimal) for value in known):
        return NUMBERS
    return TEXT if all(isinstance(value, str) for value in known) else type(known[0]).__name__


def _numbers(declared: Declared, name: str, values: Sequence[Any]) -> NDArray[Any]:
    """Give a column as numbers, NaN for NULL."""
    if not all(value is None or isinstance(value, int | float | Decimal) for value in values):
        raise UsageError(f"{declared.where}: column {name!r} holds values that are no numbers")
    array = np.array(values)
    return array if array.dtype.kind in "iufb" else np.array(values, dtype=np.float64)


def _keys(values: Sequence[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return keys_of(array)
