"""What an attempt is called and judged by at this site: manifest, policy, job and facts."""

from collections.abc import Mapping
from dataclasses import dataclass

from edge_node.job_state import AttemptFacts, JobState
from edge_node.policy import Policy, cohort_policy
from privacy.pipeline import Mode
from privacy.secagg.graph import GraphRule
from privacy.secagg.keys import suite_named
from privacy.secagg.messages import AttemptContext, Fingerprint
from privacy.secagg.rules import SiteConfig
from tidegate.manifest import Manifest


@dataclass(frozen=True)
class SiteIdentity:
    """Who this site is and whom it trusts.

    Attributes:
        site_id: As in the manifest.
        me: Fingerprint of the pinned signing key.
        node_fingerprint: SHA-256 of the TLS key's SPKI, hex, as the manifest must say.
        operator_spki: The operator's key, pinned at enrolment.
        instance_id: Names the boot key under which the stock is wrapped.
        device: Kind of device, for the operator's display.
    """

    site_id: str
    me: Fingerprint
    node_fingerprint: str
    operator_spki: bytes
    instance_id: bytes
    device: str


@dataclass(frozen=True)
class AttemptTerms:
    """The pinned manifest and the site's own rules, with what every attempt needs of them."""

    manifest: Manifest
    manifest_hash: bytes
    pinned: Mapping[Fingerprint, bytes]
    me: Fingerprint
    policy: Policy
    graph_rule: GraphRule

    @classmethod
    def of(
        cls, manifest: Manifest, identity: SiteIdentity, policy: Policy, graph_rule: GraphRule
    ) -> "AttemptTerms":
        """Take the pinned manifest."""
        pinned = manifest.pinned()
        return cls(manifest, manifest.hash(), pinned, identity.me, policy, graph_rule)

    def context(self, job_id: str, number: int, attempt: int) -> AttemptContext:
        """Name an attempt."""
        return AttemptContext(
            suite=self.manifest.suite,
            consortium_id=self.manifest.consortium_id,
            manifest_hash=self.manifest_hash,
            job_id=job_id,
            roster_epoch=self.manifest.roster_epoch,
            round=number,
            attempt=attempt,
        )

    def config(
        self,
        state: JobState,
        context: AttemptContext,
        facts: AttemptFacts,
        last_sent: tuple[int, int] | None = None,
    ) -> SiteConfig:
        """Give the configuration of an attempt.

        Args:
            state: Its job.
            context: Its name.
            facts: What it is begun with.
            last_sent: Of a held update: round and attempt that it was last sent in.
        """
        return SiteConfig(
            me=self.me,
            suite=suite_named(self.manifest.suite),
            context=context,
            pinned=self.pinned,
            policy=cohort_policy(
                self.policy, self.manifest, mode_of(state, facts), state.previous_survivors
            ),
            plan=facts.expected_plan(state.job),
            last_accepted=facts.last_accepted,
            last_sent=last_sent,
            step_timeout_s=state.job.step_timeout_s,
            graph_rule=self.graph_rule,
        )


def mode_of(state: JobState, facts: AttemptFacts) -> Mode:
    """Give the mode of what an attempt sends."""
    return state.job.plan_for(facts.key.purpose).mode


def charged_ahead(state: JobState) -> bool:
    """Whether a job's updates are charged before they are made, and outlive an attempt."""
    return state.job.plan.mode is Mode.RECORD_LOCAL
