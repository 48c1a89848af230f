"""The daemon: one timer, which follows the participant's next deadline; one refill at a time."""

import asyncio
import time

from edge_node.commands import RefillBundles, TimePassed
from edge_node.daemon import EdgeNode


class Clockwork:
    """A participant that only knows a deadline, and who told it that time passed, and when."""

    def __init__(self):
        self.deadline_s = None
        self.rung = asyncio.Event()

    def next_deadline_s(self):
        return self.deadline_s

    def handle(self, event, now_s):
        assert event == TimePassed()
        if self.deadline_s is not None and now_s >= self.deadline_s:
            self.deadline_s = None
            self.rung.set()
        return []


def follow(*delays_s):
    """Set these deadlines one after the other and wait for the last one to be told."""

    async def scenario():
        node = object.__new__(EdgeNode)
        node._timer, node._participant = None, Clockwork()
        for delay_s in delays_s:
            node._participant.deadline_s = time.time() + delay_s
            node._set_timer()
        await asyncio.wait_for(node._participant.rung.wait(), 10)
        assert node._timer is None, "nothing is left to wait for"

    asyncio.run(scenario())


def test_a_deadline_that_is_put_off_is_told_when_it_comes():
    follow(0.05, 0.1, 0.15)


def test_an_earlier_deadline_does_not_wait_for_the_later_timer():
    follow(1000.0, 0.05)


def test_one_refill_runs_however_often_bundles_are_asked_for():
    started = []

    class Stocked:
        manifest = object()

    async def scenario():
        node = object.__new__(EdgeNode)
        node._participant, node._refilling, node._tasks = Stocked(), None, set()
        node._failure, release = None, asyncio.Event()

        async def make_bundles(manifest, count):
            started.append(count)
            await release.wait()

        node._make_bundles = make_bundles
        for _ in range(5):
            node._refill(RefillBundles(64))
            await asyncio.sleep(0)
        release.set()
        await node._refilling
        node._refill(RefillBundles(8))
        await node._refilling

    asyncio.run(scenario())
    assert started == [64, 8]
