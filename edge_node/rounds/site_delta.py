"""Encode what a site trained: the version's plan, the residual of the job, fresh coins and noise.

Shapes: D = coordinates of the model vector, M = metrics.
"""

import secrets
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_node.job_state import encoding_of
from edge_node.rounds.contract import JobAtSite, RoundRequest
from privacy.decode import decode_integers
from privacy.delta import Delta
from privacy.encode import noise_delta, quantise_delta
from privacy.noise import NoisedUpdate
from privacy.pipeline import EncodingPlan, Mode
from privacy.quantise import Rounding
from tidegate.messages import is_evaluation

_SEED_BYTES = 32


def plan_for(job: JobAtSite, request: RoundRequest) -> EncodingPlan:
    """Give the plan that an update is encoded by.

    Raises:
        PeerError: MALFORMED or POLICY: what the version announces is nothing for this job; POLICY:
            the job has no such purpose.
    """
    plan, _ = job.terms_for(request.purpose)
    # Evaluations go by a plan of their own, which says all.
    announced = b"" if is_evaluation(request.purpose) else request.announcement
    return encoding_of(plan, request.version, announced)[0]


def encode_trained(
    job: JobAtSite,
    request: RoundRequest,
    delta: Delta,
    metrics_M: NDArray[np.float32] | None,
) -> NoisedUpdate:
    """Encode the difference of a round's training, and what earlier ones left unsaid.

    What is said of it is noted: once the round's result names this site, it leaves the residual.

    Args:
        job: The job; its residual is changed.
        request: What was asked for, with the version trained from.
        delta: Local minus global parameters.
        metrics_M: In the scale of ``EncodingPlan.metrics_norm``; None where there are none.

    Raises:
        PeerError: NOT_FINITE: local training diverged, in modes none and record-local.
    """
    plan, residual = plan_for(job, request), job.residual
    if residual is not None:
        delta = replace(delta, values_D=residual.add_to(delta.values_D, request.version))
    seed = secrets.token_bytes(_SEED_BYTES) if plan.rounding is not Rounding.PLAIN else None
    quantised = quantise_delta(plan, delta, metrics_M, seed)
    if residual is not None:
        said_D = decode_integers(plan, quantised.values_d)[: plan.gradient_length]
        residual.note(request.version, delta.values_D, said_D)
    noise_seed = secrets.token_bytes(_SEED_BYTES) if plan.mode is Mode.SITE else None
    return noise_delta(plan, quantised, noise_seed)
