"""Run one test's coroutine to its end."""

import asyncio

LIMIT_S = 60


def run(coroutine):
    """Run it on a loop of its own; a test that hangs fails."""
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT_S))
