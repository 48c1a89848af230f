"""Flower's ``Grid`` over secure sums: many instructions go out, one reply comes back.

A strategy sends an instruction to each sampled node and averages the replies. Here the sample is
the invitation to a round, and the one reply holds the mean that secure aggregation gave, with a
constant weight: averaging one reply gives that mean, so FedAvg, FedAdam and all others that use
nothing but the weighted mean run unchanged on sums that nobody can take apart. Strategies that
compare single replies (medians, Krum) would be silently wrong: ``optimiser`` refuses them.
"""

from collections.abc import Iterable
from typing import NoReturn

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from aggregator import flower_messages
from aggregator.secure_rounds import SecureRounds
from privacy.errors import UsageError
from privacy.spec import VectorSpec
from tidegate.flower_bridge import Run

Vector = NDArray[np.float32]


class SecureGrid(Grid):
    """A grid whose ``send_and_receive`` is one round of secure aggregation."""

    def __init__(self, rounds: SecureRounds, spec: VectorSpec, global_D: Vector) -> None:
        """Take what carries the rounds out, and the model version that they start from.

        Args:
            rounds: Runs a round and gives its mean.
            spec: Order and shapes of the flat vector.
            global_D: The current model version, shape (D,).
        """
        self._rounds = rounds
        self._spec = spec
        self._global_D = global_D
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
        mean = self._rounds.run_round([message.metadata.dst_node_id for message in instructions])
        if mean is None:
            return []
        mean_D = (self._global_D + mean.values_U).astype(np.float32)
        arrays = self._spec.unflatten(mean_D)
        return [flower_messages.mean_reply(instructions[0], arrays, mean.metrics)]
