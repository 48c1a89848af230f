"""A site's part in jobs and rounds: a state machine without I/O, clock or randomness.

    TrainRequest ─ Train ─ Trained ─ Ready ─ Roster ─ (the attempt, SA-1) ─ AttemptResult ─ again

Kept here: the pinned manifest, the version chain, what is trained and announced when. Attempts are
`exchange.py`'s, what goes on inside one `privacy.secagg.site`'s, I/O the daemon's. Time is Unix
seconds.
"""

from collections.abc import Callable
from typing import Any

from edge_node.attempt_terms import SiteIdentity
from edge_node.commands import (
    AcceptedJob,
    Connected,
    ConsiderJob,
    Disconnected,
    DropUpdate,
    FinishJob,
    JobJudged,
    Note,
    ParticipantCommand,
    ParticipantEvent,
    PinManifest,
    RefillBundles,
    RosterArrived,
    SendMessage,
    TimePassed,
    Train,
    Trained,
    TrainFailed,
    WantedVersion,
)
from edge_node.exchange import Commands, Exchange
from edge_node.job_state import JobState, Phase, key_of
from edge_node.policy import Policy
from privacy.errors import PeerError, Reason
from privacy.secagg.graph import STANDARD, GraphRule
from privacy.secagg.messages import RetryProof
from tidegate.manifest import Manifest, parse_and_verify
from tidegate.messages import (
    PROTOCOL,
    BundleRequest,
    Hello,
    JobEnded,
    JobOffer,
    JobReply,
    NotReady,
    Refused,
    TrainRequest,
    Welcome,
)

_ALWAYS_TOLD = (Reason.TRAINER_FAILED, Reason.NOT_FINITE, Reason.SUSPECT_MODEL)


class Participant:
    """See the module. Every method of it is one event's work."""

    def __init__(
        self,
        identity: SiteIdentity,
        policy: Policy,
        manifest: Manifest | None,
        graph_rule: GraphRule = STANDARD,
    ) -> None:
        """Begin with what is durable.

        Args:
            identity: See `SiteIdentity`.
            policy: The site's own rules for cohorts.
            manifest: As pinned; None before the first one came.
            graph_rule: Of the protocol; tests take another, to be small.
        """
        self._identity = identity
        self._jobs: dict[str, JobState] = {}
        self.exchange = Exchange(identity, policy, self._jobs, graph_rule)
        if manifest is not None:
            self.exchange.use_manifest(manifest)
        self._on: dict[type, Callable[[Any, float], Commands]] = {
            Connected: self._on_connected,
            Disconnected: self._on_disconnected,
            Welcome: self._on_welcome,
            BundleRequest: self._on_bundle_request,
            JobOffer: self._on_offer,
            JobJudged: self._on_judged,
            JobEnded: self._on_job_ended,
            Refused: self._on_refused,
            TrainRequest: self._on_train_request,
            Trained: self._on_trained,
            TrainFailed: self._on_train_failed,
            RosterArrived: self.exchange.join,
            RetryProof: self.exchange.take_proof,
            TimePassed: lambda _, now_s: self.exchange.pass_time(now_s),
        }

    @property
    def manifest(self) -> Manifest | None:
        """The pinned manifest."""
        return self.exchange.manifest

    def restore_job(self, job: AcceptedJob) -> None:
        """Take up a job that was accepted, now or before a restart."""
        self._jobs[job.job_id] = JobState(job, previous_survivors=job.previous_survivors)

    def next_deadline_s(self) -> float | None:
        """Return when to send ``TimePassed`` if nothing comes, Unix seconds; None if never."""
        return self.exchange.next_deadline_s()

    def handle(self, event: ParticipantEvent, now_s: float) -> Commands:
        """Take one event and give the commands it leads to, in order.

        Raises:
            PeerError: The aggregator cannot be trusted as it is (another manifest, a wrong
                protocol): close the session.
        """
        answer = self._on.get(type(event), self.exchange.handle)
        return answer(event, now_s)

    # --- session and jobs ------------------------------------------------------------------------

    def _on_connected(self, _event: Connected, _now_s: float) -> Commands:
        identity = self._identity
        hello = Hello(PROTOCOL, identity.instance_id, identity.device, tuple(self._jobs))
        return [SendMessage(hello)]

    def _on_disconnected(self, _event: Disconnected, _now_s: float) -> Commands:
        self.exchange.online = False
        for state in self._jobs.values():
            state.announced = False
        return []

    def _on_welcome(self, welcome: Welcome, now_s: float) -> Commands:
        if welcome.protocol != PROTOCOL:
            raise PeerError(
                Reason.WRONG_CONTEXT,
                f"the aggregator speaks {welcome.protocol!r}, this site {PROTOCOL!r}: update one",
            )
        commands: Commands = [Note("waiting for the operator to seal the manifest", {})]
        if welcome.manifest:
            commands = self._check_manifest(welcome)
        self.exchange.online = True
        return commands + (self.exchange.resume(now_s) if welcome.manifest else [])

    def _on_bundle_request(self, request: BundleRequest, _now_s: float) -> Commands:
        return [RefillBundles(request.count)] if self.manifest is not None else []

    def _on_refused(self, refused: Refused, _now_s: float) -> Commands:
        facts: dict[str, object] = {"reason": refused.reason, "detail": refused.detail}
        return [Note("refused by the aggregator", facts, warning=True)]

    def _check_manifest(self, welcome: Welcome) -> Commands:
        """Verify by the operator's pinned key; the first one is pinned, another one refused."""
        identity = self._identity
        manifest = parse_and_verify(
            welcome.manifest, welcome.manifest_signature, identity.operator_spki
        )
        if self.exchange.manifest is not None:
            if manifest != self.exchange.manifest:
                raise PeerError(
                    Reason.EQUIVOCATION, "another manifest than the one this site pinned: refused"
                )
            return []
        member = manifest.member(identity.site_id)
        if member is None:
            raise PeerError(
                Reason.POLICY,
                f"the sealed manifest has no member {identity.site_id!r}: ask the"
                " operator to seal one with this site",
            )
        if (member.fingerprint(), member.node_fingerprint) != (
            identity.me,
            identity.node_fingerprint,
        ):
            raise PeerError(
                Reason.EQUIVOCATION, "the manifest names other keys for this site than its own"
            )
        self.exchange.use_manifest(manifest)
        return [PinManifest(welcome.manifest, welcome.manifest_signature, manifest)]

    def _on_offer(self, offer: JobOffer, _now_s: float) -> Commands:
        if self.manifest is None:
            detail = "this site has no sealed manifest yet"
            return [SendMessage(JobReply(offer.job_id, False, Reason.POLICY, detail))]
        return [ConsiderJob(offer)]

    def _on_judged(self, verdict: JobJudged, _now_s: float) -> Commands:
        job = verdict.accepted
        if job is None:
            facts: dict[str, object] = {"job": verdict.job_id, "why": verdict.detail}
            reply = JobReply(verdict.job_id, False, verdict.reason, verdict.detail)
            return [Note("job refused", facts, warning=True), SendMessage(reply)]
        if job.job_id not in self._jobs:
            self.restore_job(job)
        return [
            Note("job accepted", {"job": job.job_id}),
            SendMessage(JobReply(job.job_id, True, "", "")),
        ]

    def _on_job_ended(self, end: JobEnded, _now_s: float) -> Commands:
        if self._jobs.pop(end.job_id, None) is None:
            return []
        facts: dict[str, object] = {"job": end.job_id, "state": end.state, "detail": end.detail}
        return [
            *self.exchange.drop_job(end.job_id),
            DropUpdate(end.job_id),
            FinishJob(end.job_id, end.state),
            Note("job ended", facts),
        ]

    # --- training --------------------------------------------------------------------------------

    def _on_train_request(self, request: TrainRequest, now_s: float) -> Commands:
        state = self._jobs.get(request.job_id)
        if state is None:
            detail = "this site holds no accepted offer of the job"
            return [_not_ready(request, Reason.UNKNOWN_JOB, detail, 0.0)]
        try:
            state.follow(request)
        except PeerError as error:
            why = str(error.args[0])
            note = Note("train request refused", {"job": request.job_id, "why": why}, warning=True)
            return [note, _not_ready(request, error.reason, why, state.epsilon_spent)]
        commands = self.exchange.leave(state, "the aggregator went on to a round", now_s)
        return commands + self._train_or_announce(state, now_s)

    def _train_or_announce(self, state: JobState, now_s: float) -> Commands:
        request = state.wanted
        if request is None or state.training == state.wanted_key:
            return []
        if state.has_wanted:
            return [SendMessage(state.ready(now_s))]
        if state.training is not None:
            return []  # the result will be stale, and the wanted update is made after it
        state.update, state.held, state.announced = None, None, False
        state.training = key = key_of(request)
        state.stopwatch.enter(Phase.TRAIN, now_s)
        wanted = WantedVersion(
            request.broadcast, request.chain_head, request.log, request.announcement
        )
        train = Train(request.job_id, key, wanted, request.config)
        return [DropUpdate(request.job_id), train]

    def _on_trained(self, event: Trained, now_s: float) -> Commands:
        state = self._jobs.get(event.job_id)
        if state is None:
            return [DropUpdate(event.job_id)]
        state.training = None
        state.epsilon_spent = event.epsilon_spent
        state.stopwatch.enter(Phase.WAIT, now_s)
        if event.key != state.wanted_key:
            return [DropUpdate(event.job_id), *self._train_or_announce(state, now_s)]
        state.update = event.key
        return [SendMessage(state.ready(now_s))]

    def _on_train_failed(self, event: TrainFailed, now_s: float) -> Commands:
        state = self._jobs.get(event.job_id)
        if state is None or state.wanted is None:
            return []
        state.training = None
        state.epsilon_spent = event.epsilon_spent
        state.stopwatch.enter(Phase.WAIT, now_s)
        number = event.key.round
        stale = event.key != state.wanted_key
        facts: dict[str, object] = {"job": event.job_id, "round": number}
        note = Note(
            "not ready", {**facts, "reason": event.reason, "why": event.detail}, warning=True
        )
        commands: Commands = [note]
        # An app that fails later than each deadline would else be missing without a word, as would
        # a site that refuses each version. Other reasons may come of being late, as when the old
        # version can be fetched no more.
        if not stale or event.reason in _ALWAYS_TOLD:
            spent = event.epsilon_spent
            said = NotReady(event.job_id, number, event.reason, event.detail, spent)
            commands.append(SendMessage(said))
        return commands + (self._train_or_announce(state, now_s) if stale else [])


def _not_ready(
    request: TrainRequest, reason: Reason, detail: str, epsilon_spent: float
) -> ParticipantCommand:
    return SendMessage(NotReady(request.job_id, request.round, reason, detail, epsilon_spent))
