"""Run a whole trees job over sites in this process: every stage but masks and the network.

The sites' own histogram code, rounding and Skellam noise of the job's plan, the ring, decoding and
the aggregator's own server step; epsilon is what the accountant says of the whole job. Masks change
no sum, so what grows here is what grows in a federation with the same coins.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aggregator.secure_rounds import TRAINING, Instruction, SecureMean
from aggregator.server_step import make_step
from edge_node.data import Dataset
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.tree_histograms import TreeHistograms
from privacy.accounting.chain import TIER_ENFORCED, TIER_NONE
from privacy.decode import decode_sum
from privacy.errors import UsageError
from privacy.pipeline import EncodingPlan, Mode
from privacy.planning import CohortRules, check_encoding, derive_encoding, step_event
from tidegate.job_terms import privacy_terms, update_spec
from tidegate.jobfile import JobFile, Trees
from tidegate.tree_model import TreeModel, model_spec

RULES = CohortRules(colluders=1, min_survivors=4, members=5)
MAP_SEED = bytes(32)


@dataclass(frozen=True)
class Grown:
    """A finished job."""

    model: TreeModel = field(repr=False)
    epsilon: float
    seconds: float


class InProcessConsortium:
    """``SecureRounds`` over sites in this process: exact sums of what they would mask."""

    def __init__(self, job: JobFile, datasets: Sequence[Dataset]) -> None:
        """Give each data set to a site of its own."""
        if not isinstance(job.work, Trees):
            raise UsageError("this consortium grows trees only")
        spec = model_spec(job.work)
        terms = privacy_terms(job)
        summed = update_spec(job, spec)
        self.plan: EncodingPlan = derive_encoding(terms, summed, RULES, MAP_SEED)
        self.epsilon = check_encoding(self.plan, terms, summed, RULES)
        event = step_event(self.plan, RULES)
        tier = TIER_NONE if self.plan.mode is Mode.NONE else TIER_ENFORCED
        self.sites = [
            TreeHistograms(JobAtSite("job", job, self.plan, spec, event, tier, dataset), job.work)
            for dataset in datasets
        ]
        self.version = 0
        self.model_D: NDArray[np.float32] = TreeModel.empty(job.work).to_vector()

    def wait_for_nodes(self) -> list[int]:
        """Give all sites."""
        return list(range(len(self.sites)))

    def run_round(self, node_ids: list[int], instruction: Instruction = TRAINING) -> SecureMean:
        """Sum what the sites make of the newest version."""
        request = RoundRequest(self.version + 1, self.version, self.model_D, instruction.purpose)
        total_d = np.zeros(self.plan.length, dtype=np.int64)
        for node in node_ids:
            total_d += asyncio.run(self.sites[node].make_update(request)).vector_D
        ring_d = (total_d % (1 << self.plan.bits)).astype(np.uint32)
        values_U = decode_sum(self.plan, ring_d, 1.0).gradient_D
        noise_std = math.sqrt(self.plan.noise_variance * len(node_ids)) / self.plan.scale
        return SecureMean(values_U, {}, noise_std)


def run_job(job: JobFile, datasets: Sequence[Dataset]) -> Grown:
    """Run a whole trees job in this process."""
    if not isinstance(job.work, Trees):
        raise UsageError("only a [trees] job grows trees")
    began = time.perf_counter()
    consortium = InProcessConsortium(job, datasets)
    step = make_step(job, model_spec(job.work), RULES.min_survivors)
    for version in range(job.rounds):
        consortium.version = version
        stepped = step.step(version + 1, consortium.model_D, consortium)
        if stepped is None:
            raise UsageError("a round gave no model")
        consortium.model_D = stepped.values_D
    model = TreeModel.from_vector(job.work, consortium.model_D)
    return Grown(model, consortium.epsilon, time.perf_counter() - began)
