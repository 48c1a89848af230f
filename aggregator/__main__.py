"""``python -m aggregator --config aggregator.toml``: run one aggregator until a signal ends it."""

import argparse
import asyncio
import fcntl
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from aggregator.config import AggregatorConfig, load_config
from aggregator.coordinator import Coordinator
from aggregator.heap import bound_heap
from aggregator.listeners import ADDRESSES_FILE, listen
from aggregator.log import LOGGER, configure_logging
from aggregator.registry import Registry
from aggregator.store import Store
from privacy.errors import TidegateError, UsageError
from privacy.secagg.keys import suite_named
from tidegate.pki import load_authority, read_private

EXIT_USAGE = 2


def main() -> None:
    """Run the aggregator; an expected error is one line on stderr and an exit status."""
    parser = argparse.ArgumentParser(prog="python -m aggregator", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the aggregator.toml")
    try:
        config = load_config(parser.parse_args().config)
        configure_logging(config.log_level)
        os.umask(0o077)
        bound_heap()
        with _alone(config.folder):
            uvloop.run(serve(config))
    except TidegateError as error:
        sys.stderr.write(f"aggregator: {error}\n")
        raise SystemExit(EXIT_USAGE) from None


async def serve(config: AggregatorConfig) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        UsageError: Something of the configuration or the folder stops it from starting.
    """
    folder = config.folder
    authority = load_authority(read_private(folder / "ca.key"), read_private(folder / "ca.pem"))
    store = Store(config.database, folder)
    try:
        operator_spki = read_private(folder / "operator.spki")
        signatures = suite_named(config.suite).signatures
        registry = Registry(store, authority, operator_spki, config.limits.max_sites, signatures)
        coordinator = Coordinator(config, store, registry)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        coordinator.start()
        listeners = await listen(config, coordinator)
        gc.freeze()  # what is loaded stays: neither rounds nor the exit need to walk through it
        await stop.wait()
        LOGGER.info("stopping")
        await coordinator.close()
        await listeners.stop()
    finally:
        store.close()
        (folder / ADDRESSES_FILE).unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder: two aggregators on one state would each hand out attempt numbers."""
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist: make it with `tidegate init`")
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise UsageError(f"{folder} is in use by another aggregator: stop that one first") from None
    try:
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    main()
    # All is closed and durable; torch's own tear-down would take a second or more.
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0)
