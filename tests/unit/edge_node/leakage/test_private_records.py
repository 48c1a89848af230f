"""An app is shown a site's own records for an audit only where it cannot carry them off."""

import asyncio

import pytest

from edge_node.leakage.run import AuditSettings, _attack
from edge_node.trainer.frames import DESCRIBE
from privacy.errors import UsageError
from privacy.leakage.effort import Effort
from tidegate.confine.sandbox import SandboxReport

SETTINGS = AuditSettings(1, Effort(), 1.0, private_records=4)


class Asked(Exception):  # noqa: N818 - no error: the audit went on
    pass


class Child:
    """A confined process that notes whether it was stopped."""

    def __init__(self, *, network):
        self.report = SandboxReport(
            network=network, filesystem=True, process=True, memory=True, syscalls=True
        )
        self.stopped = False

    async def start(self):
        return self.report

    async def request(self, frame):
        assert frame == {"action": DESCRIBE}
        raise Asked

    async def stop(self):
        self.stopped = True


@pytest.mark.parametrize(
    ("network", "rows", "outcome"),
    [(False, b"rows", UsageError), (True, b"rows", Asked), (False, b"", Asked)],
)
def test_no_private_record_goes_to_an_app_whose_sandbox_is_incomplete(network, rows, outcome):
    child = Child(network=network)
    with pytest.raises(outcome):
        asyncio.run(_attack(child, None, None, None, rows, SETTINGS, progress=[].append))
    assert child.stopped
