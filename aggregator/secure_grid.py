"""Flower's ``Grid`` over secure sums: many instructions go out, one reply comes back.

A strategy sends an instruction to each sampled node and averages the replies. Here the sample is
the invitation to a round, and the one reply holds the mean that secure aggregation gave, with a
constant weight: averaging one reply gives that mean, so FedAvg, FedAdam and all others that use
nothing but the weighted mean run unchanged on sums that nobody can take apart. Strategies that
compare single replies (medians, Krum) would be silently wrong: ``optimiser`` refuses them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from aggregator import flower_messages
from privacy.errors import UsageError
from tidegate.flower_bridge import Run


@dataclass(frozen=True)
class RoundReply:
    """What a round's secure sum gives to the strategy.

    Attributes:
        arrays: Global model plus decoded mean, by tensor name.
        metrics: Read from the noised metric sums; may be empty.
    """

    arrays: Mapping[str, NDArray[np.floating]] = field(repr=False)
    metrics: Mapping[str, float]


class SecureRounds(Protocol):
    """What carries a round out; both calls block the strategy's thread."""

    def wait_for_nodes(self) -> list[int]:
        """Return the node ids of the connected sites, once there are enough for a cohort."""
        ...

    def run_round(self, node_ids: list[int]) -> RoundReply | None:
        """Run one round with these sites invited; None where the round was given up."""


class SecureGrid(Grid):
    """A grid whose ``send_and_receive`` is one round of secure aggregation."""

    def __init__(self, rounds: SecureRounds) -> None:
        """Take what carries the rounds out."""
        self._rounds = rounds
        self._run: Run | None = None

    def set_run(self, run: Run) -> None:
        """Keep the run that Flower describes; nothing here depends on it."""
        self._run = run

    @property
    def run(self) -> Run:
        """Return that run."""
        if self._run is None:
            raise UsageError("this grid was given no Flower run; call set_run first")
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make an instruction, as Flower's own grids do."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return connected sites, after waiting until there are enough: no strategy has to poll."""
        return self._rounds.wait_for_nodes()

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:  # noqa: ARG002 - by Grid
        """Refuse: replies of single sites do not exist here."""
        raise UsageError("a secure grid has no replies of single sites; use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:  # noqa: ARG002 - by Grid
        """Refuse: replies of single sites do not exist here."""
        raise UsageError("a secure grid has no replies of single sites; use send_and_receive")

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run one round with the addressed sites invited.

        Args:
            messages: One instruction a site; their arrays are the model version that the sites
                download, so nothing is taken from them but the addressees.
            timeout: Not used: a round's deadlines are the job's.

        Returns:
            One reply, or none where the round was given up.
        """
        del timeout
        instructions = list(messages)
        if not instructions:
            return []
        reply = self._rounds.run_round([message.metadata.dst_node_id for message in instructions])
        if reply is None:
            return []
        return [flower_messages.mean_reply(instructions[0], reply.arrays, reply.metrics)]
