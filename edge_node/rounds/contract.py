"""Say what each kind of work does for the daemon: an update at a published model version.

Shapes: D = coordinates of the model vector.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_node.data import Dataset
from privacy.accounting.events import Event
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import EncodingPlan, Mode
from privacy.residual import Residual
from privacy.spec import VectorSpec
from tidegate.confine.sandbox import SandboxReport
from tidegate.jobfile import JobFile, NoPrivacy
from tidegate.messages import TRAIN, is_evaluation
from tidegate.schema import Schema


@dataclass(frozen=True)
class EvaluationTerms:
    """How a Flower app's evaluation is encoded, and what one sum of it is charged as."""

    plan: EncodingPlan
    event: Event


@dataclass(frozen=True)
class JobAtSite:
    """A job as this site agreed to it.

    Attributes:
        job_id: Its name everywhere.
        job_file: As submitted.
        plan: As accepted; each version's map seed derives from it.
        spec: Of the model version that is broadcast.
        event: What one sum is charged as.
        tier: Who is trusted with the clip, in the words of the ledger.
        dataset: The site's rows.
        evaluation: Plan and event of a Flower app's evaluation; None where the job has none.
    """

    job_id: str
    job_file: JobFile
    plan: EncodingPlan
    spec: VectorSpec
    event: Event
    tier: str
    dataset: Dataset
    evaluation: EvaluationTerms | None = None

    @property
    def schema(self) -> Schema:
        """Return the columns of a row: the job's, or all single numbers of the data set."""
        return self.job_file.schema or self.dataset.scalars

    @property
    def delta_dp(self) -> float | None:
        """Return the delta that the job states its epsilon at; None where it states none."""
        privacy = self.job_file.privacy
        return None if isinstance(privacy, NoPrivacy) else privacy.delta_dp

    @cached_property
    def residual(self) -> Residual | None:
        """Return what this site's updates have left unsaid; None where the plan carries nothing.

        In memory only: after a restart it begins anew, which costs accuracy and nothing else.
        """
        return Residual(self.plan.decay) if self.plan.decay else None

    @property
    def charged_ahead(self) -> bool:
        """Whether an update is charged before it is made, once, and may then be sent again.

        Mode record-local: what leaves is private by itself (privacy.md, "record-local").
        """
        return self.plan.mode is Mode.RECORD_LOCAL

    def terms_for(self, purpose: str) -> tuple[EncodingPlan, Event]:
        """Give how an update for a purpose is encoded, and what its sum is charged as.

        Raises:
            PeerError: POLICY: the job has no evaluation.
        """
        if not is_evaluation(purpose):
            return self.plan, self.event
        if self.evaluation is None:
            raise PeerError(Reason.POLICY, "the job declares no evaluation, so none is made")
        return self.evaluation.plan, self.evaluation.event


@dataclass(frozen=True)
class RoundRequest:
    """What the aggregator asks an update for.

    Attributes:
        round: The exchange's number, from 1, strictly increasing.
        version: Of the model.
        model_D: The model version, shape (D,), finite.
        purpose: "train", or "evaluate" for a Flower app's evaluation; its own action after a dot.
        config: A Flower app's message settings (``tidegate.flower_config``); empty for other work.
        announcement: What the version says about the encoding of updates from it.
    """

    round: int
    version: int
    model_D: NDArray[np.float32] = field(repr=False)
    purpose: str = TRAIN
    config: bytes = b""
    announcement: bytes = field(default=b"", repr=False)


class LocalRound(Protocol):
    """One job's work at this site."""

    @property
    def job(self) -> JobAtSite:
        """The job."""
        ...

    async def start(self) -> SandboxReport | None:
        """Get ready before the first request; None where nothing of the job's code runs.

        Raises:
            TrainerFailure: The app does not start.
            UsageError: This machine lacks a protection that the site requires.
        """

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Make one update with fresh coins and noise.

        Raises:
            TrainerFailure: The app raised, hung or died.
            PeerError: The request cannot be met.
        """
        ...

    async def stop(self) -> None:
        """End whatever runs for the job."""
