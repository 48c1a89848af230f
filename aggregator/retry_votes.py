"""The votes of a round's failed attempts: what frees charged updates for another try.

SA-1, "Retry rule" (docs/adr/0017). A site that was charged in an attempt which ended without a sum
may send the same update again, uncharged, once A members have signed that no sum of that attempt
can hold it. Those signatures come as answers to the ``AbortRequest``, hence after the attempt's
end. Pure, as the round is; they are kept for the round and for this process alone.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from privacy.secagg.commands import SendTo, ServerEvent, SiteBack
from privacy.secagg.messages import (
    AbortRequest,
    AbortSignature,
    Fingerprint,
    RetryProof,
    SurvivorSignature,
)
from privacy.secagg.server import ServerAttempt

VOTES_S = 2.0
"""Seconds that charged sites are not asked to train anew, for their proofs may still come."""


@dataclass
class FailedAttempts:
    """See the module.

    Attributes:
        waiting: Who is not asked to train yet.
        until_s: How long they wait, Unix seconds.
    """

    waiting: set[Fingerprint] = field(default_factory=set)
    until_s: float = 0.0
    _machines: dict[int, ServerAttempt] = field(default_factory=dict)

    def add(self, number: int, machine: ServerAttempt | None) -> None:
        """Keep an attempt that was aborted, if anybody may have been charged in it."""
        if machine is not None and machine.may_have_charged:
            self._machines[number] = machine

    def take(self, number: int, event: ServerEvent, now_s: float) -> bool:
        """Count what came for a failed attempt; a vote that does not verify counts for nothing.

        Returns:
            Whether it was a vote on one.

        Raises:
            PeerError: The frame is refused.
        """
        machine = self._machines.get(number)
        if machine is None or not isinstance(event, AbortSignature | SurvivorSignature):
            return False
        machine.handle(event, now_s)
        return True

    def hold_back(
        self, sites: Collection[Fingerprint], present: Collection[Fingerprint], now_s: float
    ) -> None:
        """Let those of these sites wait that may be freed yet.

        Args:
            sites: Who would be asked to train.
            present: Who is connected: votes of others are not waited for.
            now_s: Unix seconds.
        """
        if self.votes_due(present):
            self.waiting = {site for site in sites if self._last_of(site) is not None}
            self.until_s = now_s + VOTES_S
        else:
            self.waiting = set()

    def votes_due(self, present: Collection[Fingerprint]) -> bool:
        """Say whether anybody who is here has not voted on the newest failed attempts."""
        return any(
            set(machine.cohort.members) & set(present) - {vote.signer for vote in machine.votes}
            for machine in self._machines.values()
        )

    def is_freed(self, site: Fingerprint) -> bool:
        """Say whether the last attempt that the site may have been charged in cannot release it."""
        machine = self._last_of(site)
        return machine is not None and machine.proof_for(site) is not None

    def messages_for(
        self, site: Fingerprint, now_s: float, *, back: bool
    ) -> tuple[AbortRequest | RetryProof, ...]:
        """Give what a site is told before it is asked to train: what ended, and what frees it.

        Args:
            site: Who.
            now_s: Unix seconds.
            back: It is connected anew, and may not know that its attempts are over.
        """
        told: list[AbortRequest | RetryProof] = []
        for machine in self._machines.values():
            if site not in machine.may_have_charged:
                continue
            if back:
                again = machine.handle(SiteBack(site), now_s)
                sent = (command.message for command in again if isinstance(command, SendTo))
                told += [message for message in sent if isinstance(message, AbortRequest)]
            # Which attempt an update was last sent in, the site alone knows.
            proof = machine.proof_for(site)
            told += [] if proof is None else [proof]
        return tuple(told)

    def _last_of(self, site: Fingerprint) -> ServerAttempt | None:
        charged = [one for one in self._machines.values() if site in one.may_have_charged]
        return charged[-1] if charged else None
