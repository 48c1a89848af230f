"""An app's fault is told by the last of the app's own lines, and by nobody else's."""

import pytest

from tidegate.app_faults import describe_fault, is_out_of_memory, last_line

OUTSIDE = """
def call(function):
    return function()
"""
APP = """
def wrong():
    return {}["key"]
def begin(call):
    return call(wrong)
"""


def run(path, text):
    names = {}
    exec(compile(text, str(path), "exec"), names)  # noqa: S102 - stands for an import
    return names


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    names = run(folder / "task.py", APP)
    return folder, names, run(tmp_path / "library.py", OUTSIDE)["call"]


def test_the_last_line_of_the_app_is_named(app):
    folder, names, call = app
    with pytest.raises(KeyError) as caught:
        names["begin"](call)
    assert last_line(caught.value, folder) == "task.py, line 3"
    assert describe_fault(caught.value, folder) == "KeyError: 'key' (task.py, line 3)"


def test_an_error_beyond_the_app_is_told_by_the_line_that_led_there(app):
    folder, names, _ = app
    with pytest.raises(TypeError) as caught:
        names["begin"](lambda function: function + 1)
    assert last_line(caught.value, folder) == "task.py, line 5"


def test_a_folder_of_a_like_name_is_not_the_app(app, tmp_path):
    folder, _, _ = app
    (tmp_path / "app2").mkdir()
    names = run(tmp_path / "app2" / "task.py", APP)
    with pytest.raises(KeyError) as caught:
        names["wrong"]()
    assert last_line(caught.value, folder) == ""
    assert describe_fault(caught.value, folder) == "KeyError: 'key'"


def test_a_link_to_the_app_is_the_app(app, tmp_path):
    folder, names, call = app
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(KeyError) as caught:
        names["begin"](call)
    assert last_line(caught.value, link) == "task.py, line 3"


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("device: out of memory"), True),
        (ValueError("out of range"), False),
    ],
)
def test_the_words_of_libraries_for_no_more_memory_are_known(error, is_so):
    assert is_out_of_memory(error) is is_so
