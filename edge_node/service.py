"""Start and stop the edge node as a process: settings, lock, store, signals."""

import asyncio
import os
import signal
from pathlib import Path

import uvloop

from edge_node import log
from edge_node.boot_key import load_or_make
from edge_node.config import SiteConfig, load_config
from edge_node.daemon import EdgeNode
from edge_node.enrol import Credentials, load_credentials
from edge_node.lock import FolderLock
from edge_node.policy import Policy
from edge_node.policy_file import policy_of
from edge_node.store import Store


def serve(path: Path) -> None:
    """Run the edge node of a site.toml until SIGTERM or SIGINT.

    Raises:
        UsageError: Settings, enrolment, lock or store are not in order.
    """
    config = load_config(path)
    log.start_logging(config.log_level, config.site_id)
    credentials = load_credentials(config)
    policy = policy_of(config)
    lock = FolderLock(config.folder)
    try:
        store = open_store(config)
        try:
            uvloop.run(_serve(config, credentials, policy, store))
        finally:
            store.close()
    finally:
        lock.release()
    log.info("stopped")


def open_store(config: SiteConfig) -> Store:
    """Open a site's store under this boot's key; the caller holds the folder's lock.

    Raises:
        UsageError: Boot key, database or mirror are not in order.
    """
    boot = load_or_make(config.folder, config.boot_key_folder)
    if not boot.on_memory:
        log.warning("boot key not in memory", mend="set store.boot_key_folder to a tmpfs folder")
    return Store(config.database, config.mirror_file, boot)


async def _serve(
    config: SiteConfig, credentials: Credentials, policy: Policy, store: Store
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = EdgeNode(config, credentials, policy, store)
    log.info("started", pid=os.getpid(), aggregator=credentials.sites_address)
    await node.run(stop)
