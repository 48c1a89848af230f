"""Say what an app raised, and where: the last line of the app's own code that it came through."""

import os
import traceback
from pathlib import Path


def blamed(error: BaseException, app_folder: str | Path) -> str:
    """Describe an error for the app's author.

    The text may hold data of the site where the app looked at any.

    Args:
        error: What the app raised.
        app_folder: Where its code lies.

    Returns:
        Kind and message of the error, then the file inside the folder and the line, if known.
    """
    text = "".join(traceback.format_exception_only(error)).strip()
    root = os.path.realpath(app_folder) + os.sep
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        file = os.path.realpath(frame.filename)
        if file.startswith(root):
            place = f" ({file.removeprefix(root)}, line {frame.lineno})"
    return text + place
