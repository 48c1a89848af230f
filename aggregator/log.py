"""Set up the log: one line an event on standard error, no secrets, no data of sites."""

import logging
import sys
import time

LOGGER = logging.getLogger("tidegate.aggregator")


def configure_logging(level: str) -> None:
    """Write the log to standard error from a level on.

    Flower's own logger repeats each round in several lines and names no site: only its errors
    pass. gRPC and SQLAlchemy keep their defaults.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False
    logging.getLogger("flwr").setLevel(logging.ERROR)
