"""Count a site's records into the cells of a statistics job.

No code of an app runs: the daemon reads the rows, counts, rounds and adds the noise by itself,
which is why the release is enforced and not conditional on reviewed code. All rows are read
whatever the secret sample says, block by block: memory does not tell of it, and time only what
adding a sampled row's cells takes.

Shapes: N = records of a block, K = ranges of cells that a record adds to.
"""

import asyncio
import secrets

import numpy as np

from edge_node.job_state import encoding_of
from edge_node.rounds.contract import JobAtSite, RoundRequest
from privacy.cell_sum import CellSum
from privacy.errors import PeerError, Reason
from privacy.noise import NoisedUpdate
from privacy.pipeline import Mode
from privacy.sampling import poisson_sample
from tidegate.job_terms import statistics_layout

_SEED_BYTES = 32
_BLOCK_CELLS = 1 << 20


class CellCounts:
    """One sum of records counted into cells; see ``contract.LocalRound``."""

    def __init__(self, job: JobAtSite) -> None:
        """Take the job.

        Raises:
            PeerError: POLICY: the site's data set lacks a column.
        """
        self.job = job
        self._layout = statistics_layout(job.job_file)
        lacking = [name for name in self._layout.schema.names if name not in job.dataset.columns]
        if lacking:
            names = ", ".join(lacking[:5])
            raise PeerError(Reason.POLICY, f"this site's data set has no column {names}")

    async def start(self) -> None:
        """Do nothing: no code of an app runs."""

    async def stop(self) -> None:
        """Do nothing: nothing was started."""

    async def make_update(self, request: RoundRequest) -> NoisedUpdate:
        """Count the sampled records, all of them at a sampling rate of 1; none is noise alone.

        Raises:
            UsageError: The data set holds more records than the job's ``max_records``.
        """
        return await asyncio.to_thread(self._count, request.version)

    def _count(self, version: int) -> NoisedUpdate:
        plan, _ = encoding_of(self.job.plan, version)
        dataset, layout = self.job.dataset, self._layout
        coins = secrets.token_bytes(_SEED_BYTES)
        sampled_R = np.zeros(len(dataset), dtype=np.bool_)
        sampled_R[poisson_sample(len(dataset), plan.sampling_rate, coins)] = True
        total = CellSum(plan, layout.widths_K, secrets.token_bytes(_SEED_BYTES))
        rows = max(1, _BLOCK_CELLS // len(layout.widths_K))
        for begin in range(0, len(dataset), rows):
            indices = np.arange(begin, min(begin + rows, len(dataset)))
            cells_NK, values_NK = layout.cells(dataset.take_rows(indices, layout.schema))
            total.add(cells_NK, values_NK, sampled_R[indices])
        private = plan.mode is not Mode.NONE
        return total.finish(secrets.token_bytes(_SEED_BYTES) if private else None)
