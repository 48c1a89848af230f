"""What sites, jobs, consortia, addresses and devices may be called: one pattern for one thing."""

import re

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
"""A site, job, consortium or operator: it becomes a file name, a log line and a SAN URI."""

NAME_RULE = "1 to 63 of a-z, 0-9 and '-', not starting with '-'"

ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]{1,253}):[0-9]{1,5}")
"""host:port."""

DEVICE = re.compile(r"[a-z]{2,16}(:[0-9]{1,3})?")
"""``auto``, or a device as torch names it."""
