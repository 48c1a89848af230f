"""What the edge node has in its hands: jobs it works on, updates that lie ready or are sent."""

from dataclasses import dataclass, field

from edge_node.commands import UpdateKey
from edge_node.rounds.contract import LocalRound
from edge_node.upload import MaskedBytes
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.secagg.site import SiteSecrets


@dataclass
class Bench:
    """In memory only; what must survive a crash is in the store.

    Attributes:
        jobs: Accepted jobs, ready to train.
        ready: The update of a job that was not charged yet, with what it was made for.
        charged: Updates by attempt, from slot 2 until the attempt is erased.
        held: The update of a job that was charged in an attempt which died, with that attempt.
        masked: Masked forms by attempt, for a repeated upload.
        joining: Serial and secrets of an attempt until its step 1 is durable.
    """

    jobs: dict[str, LocalRound] = field(default_factory=dict)
    ready: dict[str, tuple[UpdateKey, NoisedUpdate]] = field(default_factory=dict)
    charged: dict[bytes, NoisedUpdate] = field(default_factory=dict)
    held: dict[str, tuple[bytes, NoisedUpdate]] = field(default_factory=dict)
    masked: dict[bytes, MaskedBytes] = field(default_factory=dict)
    joining: dict[bytes, tuple[int, SiteSecrets]] = field(default_factory=dict, repr=False)

    def update_of(self, ctx: bytes) -> NoisedUpdate:
        """Give the update that an attempt was charged for.

        Raises:
            PeerError: STOPPED: it is gone.
        """
        update = self.charged.get(ctx)
        if update is None:
            raise PeerError(Reason.STOPPED, "the update of this attempt is gone at the site")
        return update

    def surplus_seeds(self, job_id: str) -> tuple[bytes, ...]:
        """Give the seeds of the noise that may leave the sum of a job's ready update again."""
        return self.ready[job_id][1].surplus_seeds if job_id in self.ready else ()

    def hold(self, job_id: str, ctx: bytes) -> bytes:
        """Hold what an attempt was charged for; gives the seeds that are kept with it."""
        update = self.update_of(ctx)
        self.held[job_id] = (ctx, update)
        self.forget_attempt(ctx)
        return b"".join(update.surplus_seeds)

    def holds(self, ctx: bytes) -> bool:
        """Say whether an attempt, dead itself, still holds its update."""
        return any(held == ctx for held, _ in self.held.values())

    def recall(self, job_id: str, key: UpdateKey) -> None:
        """Lay the held update of a job ready again."""
        self.ready[job_id] = (key, self.held[job_id][1])

    def forget_attempt(self, ctx: bytes) -> None:
        """Drop what belongs to one attempt."""
        for held in (self.charged, self.masked, self.joining):
            held.pop(ctx, None)

    def forget_job(self, job_id: str) -> LocalRound | None:
        """Drop what belongs to one job; gives its work place so that the trainer can be stopped."""
        self.ready.pop(job_id, None)
        self.held.pop(job_id, None)
        return self.jobs.pop(job_id, None)
