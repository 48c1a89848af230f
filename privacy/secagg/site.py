"""One attempt of SA-1 at a site: a state machine without I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from privacy.secagg.commands import SiteCommand, SiteEvent, Step
from privacy.secagg.keys import BundleSecrets
from privacy.secagg.messages import SignedBundle
from privacy.secagg.retry import RetryPermit
from privacy.secagg.rules import SiteConfig


@dataclass(frozen=True)
class SiteSecrets:
    """The secrets of one attempt, each 32 bytes from a CSPRNG, never used for another."""

    bundle: BundleSecrets = field(repr=False)
    self_mask_seed: bytes = field(repr=False)
    coefficient_seed: bytes = field(repr=False)


class SiteAttempt:
    """Take a site through ShareKeys, masked update, consistency and unmask, or to an abort.

    Order of every step: verify, ``Sign`` if it needs a signature, ``Commit`` the slot, and only
    after ``Committed`` the ``Send`` or ``MaskAndUpload``. The identical input again gives the
    identical output; a different one kills the attempt: ``Abort`` (reason EQUIVOCATION), then, where
    slot 3 is free, ``Sign(ABORT)``, ``Commit(3)``, ``Send(AbortSignature)``, and always ``Erase``.
    """

    def __init__(
        self,
        config: SiteConfig,
        own_bundle: SignedBundle,
        secrets: SiteSecrets,
        permit: RetryPermit | None = None,
    ) -> None:
        """Begin an attempt that waits for its ``Roster``.

        Args:
            config: See ``SiteConfig``.
            own_bundle: The bundle of the stock that the roster must hold unmodified.
            secrets: What that bundle was made from, and the two fresh seeds.
            permit: From ``retry.check_retry``: step 2 is then not charged again.
        """
        raise NotImplementedError

    @classmethod
    def restore(
        cls,
        config: SiteConfig,
        own_bundle: SignedBundle,
        secrets: SiteSecrets | None,
        slots: Mapping[Step, bytes],
        permit: RetryPermit | None = None,
    ) -> "SiteAttempt":
        """Rebuild an attempt from its durable slots after a crash.

        Args:
            config: As before the crash.
            own_bundle: As before the crash.
            secrets: As before; None where they are erased: the attempt is then dead and only gives
                its signature of slot 3 again.
            slots: What ``Commit`` gave, by step.
            permit: As before the crash.
        """
        raise NotImplementedError

    def handle(self, event: SiteEvent, now_s: float) -> list[SiteCommand]:
        """Take one event at a time (Unix seconds) and give the commands it leads to, in order.

        Raises:
            PeerError: The frame is dropped and nothing changes: WRONG_CONTEXT (another attempt),
                REPLAY (a step that is over or not yet due).
            UsageError: The shell answered what was not asked.
        """
        raise NotImplementedError

    def resume(self) -> list[SiteCommand]:
        """Give what the last durable slot determines again (after ``restore`` or a reconnect)."""
        raise NotImplementedError

    def next_deadline_s(self) -> float | None:
        """Return when to send ``Tick`` if nothing comes, Unix seconds; None if never."""
        raise NotImplementedError
