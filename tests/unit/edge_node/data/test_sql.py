"""Databases: read only, one SELECT, and the address stays out of sight."""

import contextlib
import sqlite3

import numpy as np
import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_node.data import sql
from edge_node.data.declared import read_declared
from edge_node.data.loading import load_dataset
from privacy.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "bank.db")) as database:
        database.execute("CREATE TABLE loans (id INT, debt REAL, town TEXT, paper BLOB)")
        rows = [(1, 2.5, "a", b"x"), (2**40, None, None, None), (3, 7, "b", b"y")]
        database.executemany("INSERT INTO loans VALUES (?, ?, ?, ?)", rows)
        database.commit()
    address(tmp_path, "sqlite:///bank.db")
    return tmp_path


def address(folder, url):
    (folder / "url").write_text(url + "\n")
    (folder / "url").chmod(0o600)


def load(folder, **changes):
    plug = {"loader": "sql", "url_file": "url", "query": "SELECT * FROM loans"} | changes
    plug = {key: value for key, value in plug.items() if value is not None}
    return load_dataset("d", plug, folder)


def test_a_query_and_a_table_give_rows(folder):
    data = load(folder)
    assert data.columns == ("id", "debt")
    assert data.left_out == {"town": "text", "paper": "bytes"}
    np.testing.assert_array_equal(data.table_NW, [[1, 2.5], [2**40, np.nan], [3, 7]])
    assert load(folder, query=None, table="loans").fingerprint == data.fingerprint
    assert load(folder, query=None, table="main.loans").fingerprint == data.fingerprint
    assert load(folder, users=["id"]).users["id"].tolist() == [0, 1, 2]


def test_a_colon_in_a_query_is_the_querys_own(folder):
    data = load(folder, query="SELECT length('a:b') AS n, debt FROM loans -- at 12:30\n;")
    np.testing.assert_array_equal(data.table_NW[:, 0], [3, 3, 3])


def test_the_address_may_come_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv("BANK_URL", f"sqlite:///{folder}/bank.db")
    assert len(load(folder, url_file=None, url_env="BANK_URL")) == 3
    with pytest.raises(UsageError, match="BANK_UR is not set"):
        load(folder, url_file=None, url_env="BANK_UR")


def test_the_connection_itself_cannot_write(folder):
    """The check of the words is not what this rests on."""
    plug = {"loader": "sql", "url_file": "url", "table": "loans"}
    engine = sql._engine(read_declared("d", plug, folder))
    with engine.connect() as connection, pytest.raises(sqlalchemy.exc.OperationalError):
        connection.execute(sqlalchemy.text("DELETE FROM loans"))
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("PRAGMA query_only = OFF"))
        with pytest.raises(sqlalchemy.exc.OperationalError):  # the file is open in mode ro
            connection.execute(sqlalchemy.text("DELETE FROM loans"))
    assert len(load(folder)) == 3


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql", "mariadb"])
def test_each_backend_that_can_is_told_to_read_only(backend):
    assert "READ ONLY" in sql._READ_ONLY[backend] or "query_only" in sql._READ_ONLY[backend]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1; DELETE FROM loans",
        "DELETE FROM loans",
        "WITH x AS (DELETE FROM loans RETURNING *) SELECT * FROM x",
        "SELECT * INTO other FROM loans",
        "select 1 -- x\n; drop table loans",
        "SELECT ';' ; DROP TABLE loans",
        "/* SELECT */ DROP TABLE loans",
        "PRAGMA query_only = OFF",
        "ATTACH 'x.db' AS y",
        "EXPLAIN SELECT 1",
        "SELECT 'unclosed ; DELETE FROM loans",
        "",
        ";",
    ],
)
def test_anything_but_one_select_is_refused(folder, query):
    assert not sql.single_select(query)
    with pytest.raises(UsageError, match="query"):
        load(folder, query=query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        " select a, b from t ; ",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "SELECT 'delete; from' AS \"drop\" FROM t -- insert;",
        "SELECT deleted_at, updated, created FROM t WHERE x = 'it''s; so'",
    ],
)
def test_a_select_that_only_talks_of_writing_is_read(query):
    assert sql.single_select(query)


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_around_a_second_statement_hides_it_from_sqlite(before, after):
    """What passes as one SELECT is one statement to the database too."""
    query = f"SELECT 1 {before}; DELETE FROM loans {after}"  # noqa: S608
    if not sql.single_select(query):
        return
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE loans (id INT)")
        database.execute("INSERT INTO loans VALUES (1)")
        with contextlib.suppress(sqlite3.Error, sqlite3.Warning, ValueError, UnicodeError):
            database.executescript(query)
        assert database.execute("SELECT count(*) FROM loans").fetchone() == (1,)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"url_file": None}, "either url_file"),
        ({"url_env": "X"}, "either url_file"),
        ({"table": "loans"}, "either query or table"),
        ({"query": None, "table": "loans; drop"}, "table"),
        ({"query": "SELECT nonesuch FROM loans"}, "no such column"),
        ({"query": "SELECT id, id FROM loans"}, "use AS"),
        ({"columns": ["town"]}, "'town' holds text"),
        ({"url_file": "gone"}, "no file"),
    ],
)
def test_mistakes_are_named(folder, changes, says):
    with pytest.raises(UsageError, match=says) as caught:
        load(folder, **changes)
    assert "[datasets.d]" in str(caught.value)


def test_text_that_comes_late_among_numbers_is_refused(folder):
    with contextlib.closing(sqlite3.connect(folder / "bank.db")) as database:
        database.execute("CREATE TABLE late (x)")
        database.executemany("INSERT INTO late VALUES (?)", [(n,) for n in range(1500)])
        database.execute("INSERT INTO late VALUES ('secret-name')")
        database.commit()
    with pytest.raises(UsageError, match="'x' holds values that are no numbers") as caught:
        load(folder, query="SELECT x FROM late")
    assert "secret-name" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///gone.db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:bank.db?uri=true",
        "postgresql+nodriver://reader:hunter2@db.bank-a.example/loans",
        "nodialect://reader:hunter2@db.bank-a.example/loans",
        "hunter2 is no address",
        "postgresql://reader:hunter2@db.bank-a.example:port/loans",
        "",
    ],
)
def test_an_address_that_is_not_usable_is_not_repeated(folder, url):
    address(folder, url)
    with pytest.raises(UsageError) as caught:
        load(folder)
    whole = repr(caught.value) + str(caught.value)
    assert "hunter2" not in whole
    assert caught.value.__suppress_context__ or "hunter2" not in repr(caught.value.__context__)


def test_an_address_that_others_may_read_is_refused(folder):
    (folder / "url").chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        load(folder)
