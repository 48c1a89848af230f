"""Say what an app raised, and where: the last line of the app's own code that it came through."""

import os
import traceback
from pathlib import Path

_MEMORY_WORDS = ("can't allocate memory", "out of memory", "Unable to allocate", "MemoryError")


def describe_fault(error: BaseException, app_folder: str | Path) -> str:
    """Describe an error for the app's author.

    The text may hold data of the site where the app looked at any.

    Args:
        error: What the app raised.
        app_folder: Where its code lies.

    Returns:
        Kind and message of the error, then the file inside the folder and the line, if known.
    """
    line = last_line(error, app_folder)
    return _text_of(error) + (f" ({line})" if line else "")


def last_line(error: BaseException, app_folder: str | Path) -> str:
    """Give the app's last file and line that an error came through, or an empty text."""
    root = os.path.realpath(app_folder) + os.sep
    line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        file = os.path.realpath(frame.filename)
        if file.startswith(root):
            line = f"{file.removeprefix(root)}, line {frame.lineno}"
    return line


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that there was no more memory: libraries have words of their own.

    A sandbox's limit shows as one of these too.
    """
    text = _text_of(error)
    return isinstance(error, MemoryError) or any(word in text for word in _MEMORY_WORDS)


def _text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
