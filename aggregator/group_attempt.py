"""One group of a round's cohort, or the whole cohort, in its attempt of SA-1.

Pure, as the round is. The machine inside decides; kept here is how far it is, and how it ended.
"""

from dataclasses import dataclass

from aggregator.round_events import SumOpened
from privacy.secagg.commands import AbortAttempt, Publish, ServerCommand, ServerEvent
from privacy.secagg.messages import Fingerprint
from privacy.secagg.server import ServerAttempt


@dataclass
class GroupAttempt:
    """See the module.

    Attributes:
        number: Of the attempt.
        sites: Who is in it.
        machine: None until number and cohort are durable.
        end: How it ended; None while it goes on.
    """

    number: int
    sites: frozenset[Fingerprint]
    machine: ServerAttempt | None = None
    end: SumOpened | AbortAttempt | None = None

    @property
    def deadline_s(self) -> float | None:
        """When the machine is to see the time; None where it waits for none."""
        return None if self.machine is None or self.end else self.machine.next_deadline_s()

    def handle(self, event: ServerEvent, now_s: float) -> list[ServerCommand]:
        """Let the machine work, and keep its end; nothing before it is open, or after its end.

        Raises:
            PeerError: The machine refuses a frame; nothing changed.
        """
        if self.machine is None or self.end is not None:
            return []
        commands = self.machine.handle(event, now_s)
        for command in commands:
            match command:
                case AbortAttempt():
                    self.end = command
                case Publish(transcript_hash, survivors):
                    self.end = SumOpened(self.number, transcript_hash, survivors)
                case _:
                    pass
        return commands
