"""Simulated sites that die between steps and come back, several in a process of their own.

Started by ``sparse_federation``, which speaks one line of JSON at a time with it: a ``Task`` comes
in, ``{"enrolled": n}`` goes out, ``go`` comes in, and a ``Report`` goes out when the job is over.

A death is that of a killed process as the aggregator sees it: the connection breaks before anything
of the step has left, and what comes back in the next round is another instance with a new stock.
Each site's vector holds one number that follows from its fingerprint, so that whoever knows the
survivors knows the sum.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.simulated_site import SimulatedSite, enrol_site
from edge_node.commands import (
    ParticipantCommand,
    ParticipantEvent,
    RosterArrived,
    SendMessage,
    UploadUpdate,
)
from edge_node.enrol import Credentials
from edge_node.link import Link
from privacy.errors import PeerError, Reason
from privacy.pipeline import EncodingPlan
from privacy.secagg.messages import (
    DealtShares,
    Fingerprint,
    GraphReveal,
    SurvivorSignature,
    UnmaskShares,
)
from tidegate.messages import AttemptResult, TrainRequest

STEPS = ("reveal", "deal", "upload", "vote", "answer")
_MESSAGE_OF = {
    "reveal": GraphReveal,
    "deal": DealtShares,
    "vote": SurvivorSignature,
    "answer": UnmaskShares,
}
_VALUES = 1000
_PARTS = 2048
_LAST_WORDS_S = 10.0
_ENROL_TRIES = 200
_ENROL_AGAIN_S = 5.0


class KilledError(Exception):
    """The site is dead: nothing more of it leaves."""


@dataclass
class Board:
    """What the sites of one process see of the job.

    Attributes:
        round: The newest that was begun.
        turn: Set when another round begins, or the job has ended; then a new one stands here.
        over: The job has ended.
        sums: Who is in each round's sum, fingerprints in hex, as the first site here was told.
        scale: Of the job's encoding.
    """

    round: int = 0
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    sums: dict[int, list[str]] = field(default_factory=dict)
    scale: float = 0.0

    def begin(self, number: int) -> None:
        """Note a round that a site was asked to train for."""
        if number > self.round:
            self.round = number
            self.turn.set()
            self.turn = asyncio.Event()

    def end(self) -> None:
        """Note that the job is over."""
        self.over.set()
        self.turn.set()


def value_of(site: Fingerprint, plan_value: int) -> int:
    """Give the number in every place of a site's vector: at most ``plan_value``, above half."""
    return plan_value - (plan_value // _PARTS) * (int.from_bytes(site[:4], "big") % _VALUES)


class MortalSite(SimulatedSite):
    """A site with a fate: the step before which it dies, by round."""

    def __init__(
        self, site_id: str, credentials: Credentials, fate: dict[int, str], board: Board
    ) -> None:
        """Take an enrolled identity; ``fate`` loses each death that has happened."""
        super().__init__(site_id, credentials)
        self._me = credentials.signer.fingerprint
        self._fate = fate
        self._board = board
        self._cohort: tuple[int, list[str]] = (0, [])

    async def _take(self, link: Link, event: ParticipantEvent) -> None:
        match event:
            case TrainRequest():
                self._board.begin(event.round)
            case RosterArrived(roster):
                members = [signed.bundle.site.hex() for signed in roster.bundles]
                self._cohort = (roster.context.round, members)
            case AttemptResult():
                number, members = self._cohort
                told = [members[index - 1] for index in event.survivors]
                if self._board.sums.setdefault(number, told) != told:
                    raise RuntimeError(f"two sites were told different sums of round {number}")
        await super()._take(link, event)

    def _carry_out(self, link: Link, command: ParticipantCommand) -> list[ParticipantEvent]:
        number = self._cohort[0]
        step = self._fate.get(number)
        if step is not None and _begins(step, command):
            del self._fate[number]
            raise KilledError
        return super()._carry_out(link, command)

    def _value(self, plan: EncodingPlan) -> int:
        self._board.scale = plan.scale
        return value_of(self._me, super()._value(plan))


def _begins(step: str, command: ParticipantCommand) -> bool:
    if isinstance(command, SendMessage):
        return isinstance(command.message, _MESSAGE_OF.get(step, ()))
    return step == "upload" and isinstance(command, UploadUpdate)


async def live(site_id: str, credentials: Credentials, fate: dict[int, str], board: Board) -> None:
    """Play a site until the job is over; a dead one comes back in the round after."""
    while not board.over.is_set():
        try:
            await MortalSite(site_id, credentials, fate, board).run()
            board.end()
        except* KilledError:
            pass
        await board.turn.wait()


async def play(sites: dict[str, Credentials], fates: dict[str, dict[int, str]]) -> Board:
    """Play sites until the job is over; any failure ends all of them."""
    board = Board()
    async with asyncio.TaskGroup() as tasks:
        playing = [
            tasks.create_task(live(name, credentials, fates.get(name, {}), board))
            for name, credentials in sites.items()
        ]
        await board.over.wait()
        # One that came back too late is not told that the job has ended.
        _, late = await asyncio.wait(playing, timeout=_LAST_WORDS_S)
        for task in late:
            task.cancel()
    return board


def main() -> None:
    task: dict[str, Any] = json.loads(sys.stdin.readline())
    folder = Path(task["folder"])
    sites = {name: _enrolled(name, folder / name, token) for name, token in task["tokens"].items()}
    fates = {
        name: {int(number): step for number, step in fate.items()}
        for name, fate in task["fates"].items()
    }
    _say({"enrolled": len(sites)})
    sys.stdin.readline()
    begin_s = time.process_time()
    board = asyncio.run(play(sites, fates))
    cpu_s = time.process_time() - begin_s
    _say({"cpu_s": cpu_s, "scale": board.scale, "sums": board.sums})


def _enrolled(site_id: str, folder: Path, token: str) -> Credentials:
    """Enrol a site, as patient as the aggregator asks: it takes so many a minute and no more."""
    for _ in range(_ENROL_TRIES):
        try:
            return enrol_site(site_id, folder, token)
        except PeerError as error:
            if error.reason is not Reason.POLICY:
                raise
            time.sleep(_ENROL_AGAIN_S)
    raise RuntimeError(f"{site_id} could not enrol: the aggregator refuses it for minutes")


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
