"""Log one structured line an event to stderr: time, level, event, key=value pairs.

Nothing secret is ever passed in: shares, seeds and keys have no place among the values, and what a
peer sent is quoted, so that it can neither break a line nor forge one.
"""

import logging
import sys
import time

LOGGER = logging.getLogger("edge_node")
_MAX_VALUE_CHARS = 300


def start_logging(level: str, site_id: str) -> None:
    """Send the edge node's log to stderr, each line naming the site.

    Args:
        level: "debug", "info", "warning" or "error".
        site_id: The site, for machines that run several.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(site_id))
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False


def log(level: int, event: str, **values: object) -> None:
    """Log an event.

    Args:
        level: A level of the logging module.
        event: What happened, two or three words, the same for each such event.
        values: Facts; bytes are shown as their first eight hexadecimal digits.
    """
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, "%s%s", event, "".join(_pair(k, v) for k, v in values.items()))


def info(event: str, **values: object) -> None:
    """Log what an administrator wants to know."""
    log(logging.INFO, event, **values)


def warning(event: str, **values: object) -> None:
    """Log what an administrator should look at."""
    log(logging.WARNING, event, **values)


def _pair(key: str, value: object) -> str:
    if isinstance(value, bytes):
        return f" {key}={value[:4].hex()}"
    if isinstance(value, float):
        return f" {key}={value:.6g}"
    text = str(value)[:_MAX_VALUE_CHARS]
    bare = text and text.isprintable() and not any(c in ' "=' for c in text)
    return f" {key}={text}" if bare else f" {key}={text!a}"


class _LineFormatter(logging.Formatter):
    def __init__(self, site_id: str) -> None:
        super().__init__()
        self._site_id = site_id

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return (
            f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} site={self._site_id}"
            f" {record.getMessage()}"
        )
