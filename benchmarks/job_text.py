"""Set values in a job file's text, so that one file serves several sizes of a benchmark."""

import re
from collections.abc import Mapping


def with_values(job_toml: str, values: Mapping[str, float]) -> bytes:
    """Give the job file with numbers exchanged; everything else stays as it stands.

    Args:
        job_toml: The text of a job file in which every key to be set stands on one line, once.
        values: Numbers by key.

    Raises:
        ValueError: A key does not stand there exactly once.
    """
    for key, value in values.items():
        job_toml, found = re.subn(rf"(?m)^{re.escape(key)} = .*$", f"{key} = {value}", job_toml)
        if found != 1:
            raise ValueError(f"{key} stands {found} times in the job file, not once")
    return job_toml.encode()
