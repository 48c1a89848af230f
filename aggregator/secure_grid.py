"""Flower's ``Grid`` over secure sums: many instructions go out, one reply comes back.

A strategy sends an instruction to each sampled node and averages the replies. Here the sample is
the invitation to a round, and the one reply holds the mean that secure aggregation gave, with a
constant weight: averaging one reply gives that mean, so FedAvg, FedAdam and all others that use
nothing but the weighted mean run unchanged on sums that nobody can take apart. Strategies that
compare single replies (medians, Krum) would be silently wrong: ``tidegate.jobfile.strategies``
names them, and they are refused before a round begins.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from aggregator.secure_rounds import Instruction
from privacy.errors import UsageError
from tidegate import flower_messages
from tidegate.flower_bridge import Run
from tidegate.flower_config import MessageConfig, encode

_PURPOSE = re.compile(r"(train|evaluate)(\.[A-Za-z_][A-Za-z0-9_]{0,31})?")
_NO_SINGLE_REPLIES = (
    "a secure grid has no replies of single sites: use grid.send_and_receive(), whose one reply is"
    " the mean of all"
)


@dataclass(frozen=True)
class GridCall:
    """One ``send_and_receive``: what all addressed nodes are told.

    Attributes:
        node_ids: The nodes.
        instruction: Purpose and settings.
        arrays: The model that they are to start from.
    """

    node_ids: list[int]
    instruction: Instruction
    arrays: ArrayRecord = field(repr=False)


@dataclass(frozen=True)
class GridMean:
    """The mean over the nodes.

    Attributes:
        arrays: Of their models, by name; None after an evaluation.
        metrics: Of their metrics.
    """

    arrays: Mapping[str, NDArray[np.float32]] | None = field(repr=False)
    metrics: Mapping[str, float]


class GridRounds(Protocol):
    """What carries a grid's calls out; both block."""

    def wait_for_nodes(self) -> list[int]:
        """Return the node ids of the connected sites, once there are enough for a cohort."""
        ...

    def exchange(self, call: GridCall) -> GridMean | None:
        """Run one secure exchange; None where it was given up."""
        ...


class SecureGrid(Grid):
    """A grid whose ``send_and_receive`` is one secure exchange.

    Attributes:
        weight_key: The name of the constant weight in a reply (a strategy's ``weighted_by_key``).
    """

    def __init__(self, rounds: GridRounds, weight_key: str = flower_messages.WEIGHT_KEY) -> None:
        """Take what carries the exchanges out."""
        self._rounds = rounds
        self._run: Run | None = None
        self.weight_key = weight_key

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
        raise UsageError(_NO_SINGLE_REPLIES)

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:  # noqa: ARG002 - by Grid
        """Refuse: replies of single sites do not exist here."""
        raise UsageError(_NO_SINGLE_REPLIES)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run one exchange with the addressed sites invited.

        Args:
            messages: One instruction a site, all with the same content.
            timeout: Not used: a round's deadlines are the job's.

        Returns:
            One reply, or none where the round was given up.

        Raises:
            UsageError: The instructions are none that a secure sum can answer.
        """
        del timeout
        instructions = list(messages)
        if not instructions:
            return []
        mean = self._rounds.exchange(read_call(instructions))
        if mean is None:
            return []
        return [
            flower_messages.mean_reply(
                instructions[0], mean.arrays, {self.weight_key: 1, **mean.metrics}
            )
        ]


def read_call(instructions: list[Message]) -> GridCall:
    """Read what a strategy tells its nodes.

    Raises:
        UsageError: It differs from node to node, or holds what cannot be told by broadcast.
    """
    first = instructions[0]
    purpose, content = first.metadata.message_type, first.content
    for other in instructions[1:]:
        alike = other.content is content or other.content == content
        if other.metadata.message_type != purpose or not alike:
            raise UsageError(
                "one send_and_receive has to tell all nodes the same: the sum of what they answer"
                " has to mean something"
            )
    if _PURPOSE.fullmatch(purpose) is None:
        raise UsageError(
            f"messages of type {purpose!r} have no secure sum: use 'train' or 'evaluate', of which"
            " 'train.NAME' and 'evaluate.NAME' name an action of the ClientApp"
        )
    arrays, configs = content.array_records, content.config_records
    if len(arrays) != 1 or len(configs) > 1 or content.metric_records:
        raise UsageError(
            "a message to the nodes has to hold exactly one ArrayRecord, the model, and at most"
            " one ConfigRecord"
        )
    (arrays_key, model), (config_key, config) = (
        next(iter(arrays.items())),
        next(iter(configs.items()), ("config", {})),
    )
    settings = encode(MessageConfig(dict(config), arrays_key, config_key))
    node_ids = [message.metadata.dst_node_id for message in instructions]
    return GridCall(node_ids, Instruction(purpose, settings), model)
