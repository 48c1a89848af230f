"""Faults in how a site makes an update: noise, clip, secrets, samples, metrics, memory, division.

Each is a context in which functions of the real pipeline are replaced, in this process alone.

Shapes: D = coordinates, N = records, d = integers.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edge_node.audit.setting import SeededSecrets, secrets_from
from edge_node.rounds import row_draw
from edge_node.rounds.cell_counts import CellCounts
from edge_node.rounds.contract import LocalRound, RoundRequest
from edge_node.rounds.local_dp import LocalDp
from edge_node.rounds.plain_training import PlainTraining
from edge_node.rounds.record_sums import RecordSums
from privacy import cell_sum, encode, local_steps, pipeline, quantise
from privacy.clip import ClippedDelta
from privacy.delta import Delta
from privacy.local_noise import MIN_LEVEL_VARIANCE, local_noise
from privacy.local_steps import LocalStepAccumulator, NoisyStep
from privacy.noise import NoisedUpdate, add_skellam_noise
from privacy.pipeline import RecordAccumulator
from privacy.quantise import QuantisedDelta, RecordSum
from privacy.sampling import poisson_sample
from privacy.surplus import NoiseLevel, NoiseShare

KeyOf = Callable[[LocalRound, RoundRequest], bytes]

_UNCHECKED = 2**100
_RATE = 1.5
_BATCH = 100.0  # what a mean over the actual batch is scaled back by


@contextlib.contextmanager
def less_noise(share: float) -> Iterator[None]:
    """Add noise of a share of the variance, in both noise stages."""

    def weak_skellam(update: QuantisedDelta, full: NoiseShare, seed: bytes) -> NoisedUpdate:
        levels = (
            NoiseLevel(level.survivors, max(1, round(level.variance * share)))
            for level in full.levels
        )
        weak = NoiseShare(max(1, round(full.variance * share)), tuple(levels))
        return add_skellam_noise(update, weak, seed)

    def weak_gaussian(level_variance: int, seed: bytes, count: int) -> NDArray[np.int64]:
        weak = max(MIN_LEVEL_VARIANCE, round(level_variance * share))
        return local_noise(weak, seed, count)

    with (
        mock.patch.object(pipeline, "add_skellam_noise", weak_skellam),
        mock.patch.object(encode, "add_skellam_noise", weak_skellam),
        mock.patch.object(cell_sum, "add_skellam_noise", weak_skellam),
        mock.patch.object(local_steps, "local_noise", weak_gaussian),
    ):
        yield


@contextlib.contextmanager
def last_coordinate_bare() -> Iterator[None]:
    """Add noise to all coordinates but the last."""

    def noised(update: QuantisedDelta, share: NoiseShare, seed: bytes) -> NoisedUpdate:
        whole = add_skellam_noise(update, share, seed)
        return replace(whole, vector_D=np.append(whole.vector_D[:-1], update.values_d[-1:]))

    with (
        mock.patch.object(pipeline, "add_skellam_noise", noised),
        mock.patch.object(encode, "add_skellam_noise", noised),
    ):
        yield


@contextlib.contextmanager
def no_clip() -> Iterator[None]:
    """Scale records and differences without clipping them, and believe their integer norms."""

    def unclipped(norms_N: NDArray[np.float64], _clip: float, scale: float) -> NDArray[np.float64]:
        return np.where(np.isfinite(norms_N), scale, 0.0)[:, np.newaxis]

    def whole(delta: Delta, clipping_norm: float) -> ClippedDelta:
        return ClippedDelta(delta.values_D.astype(np.float64), clipping_norm, delta.spec_digest)

    with (
        mock.patch.object(quantise, "clip_factors", unclipped),
        mock.patch.object(encode, "clip_site_delta", whole),
        norm_unchecked(),
    ):
        yield


@contextlib.contextmanager
def norm_unchecked() -> Iterator[None]:
    """Take every vector of integers, whatever rounding made of its norm."""
    with mock.patch.object(quantise, "check_sensitivity", return_value=_UNCHECKED):
        yield


@contextlib.contextmanager
def one_seed_a_site() -> Iterator[None]:
    """Draw the same secrets in every round of a site."""
    numbers: WeakKeyDictionary[LocalRound, int] = WeakKeyDictionary()

    def key(site: LocalRound, _request: RoundRequest) -> bytes:
        return numbers.setdefault(site, len(numbers) + 1).to_bytes(32, "big")

    with _secrets_by(key):
        yield


@contextlib.contextmanager
def one_seed_a_round() -> Iterator[None]:
    """Draw the same secrets at every site of a round."""
    with _secrets_by(lambda _, request: request.round.to_bytes(32, "big")):
        yield


@contextlib.contextmanager
def bare_metrics() -> Iterator[None]:
    """Send the sums of metrics beside the noised gradient as they are."""
    shared, local = RecordAccumulator.finish, LocalStepAccumulator.finish

    def finish_shared(self: RecordAccumulator, noise_seed: bytes) -> NoisedUpdate:
        bare_d = self._open().finish().values_d
        update = shared(self, noise_seed)
        count = self._plan.metrics_length
        update.vector_D[bare_d.size - count :] = bare_d[bare_d.size - count :]
        return update

    def finish_local(self: LocalStepAccumulator, noise_seed: bytes) -> NoisyStep:
        bare_d = self._sum.finish().values_d
        step = local(self, noise_seed)
        bare_M: NDArray[np.float64] = bare_d[step.gradient_D.size :].astype(np.float64)
        bare_M *= self._noise.grid
        return NoisyStep(step.gradient_D, bare_M)

    with (
        mock.patch.object(RecordAccumulator, "finish", finish_shared),
        mock.patch.object(LocalStepAccumulator, "finish", finish_local),
    ):
        yield


@contextlib.contextmanager
def eager_model() -> Iterator[None]:
    """Take gradients at the published model moved by this site's own, un-noised last sums."""
    own: WeakKeyDictionary[RecordSums, NDArray[np.float64]] = WeakKeyDictionary()
    at_work: list[RecordSums] = []
    made, finished = RecordSums.make_update, RecordAccumulator.finish

    async def make_update(self: RecordSums, request: RoundRequest) -> NoisedUpdate:
        moved_D = request.model_D + own.get(self, np.zeros(request.model_D.size))
        at_work[:] = [self]
        return await made(self, replace(request, model_D=moved_D.astype(np.float32)))

    def finish(self: RecordAccumulator, noise_seed: bytes) -> NoisedUpdate:
        plan, sum_d = self._plan, self._open().finish().values_d
        bare_D = plan.linear_map.adjoint(sum_d / plan.scale)[: plan.gradient_length]
        own[at_work[0]] = own.get(at_work[0], np.zeros(bare_D.size)) + bare_D / _BATCH
        return finished(self, noise_seed)

    with (
        mock.patch.object(RecordSums, "make_update", make_update),
        mock.patch.object(RecordAccumulator, "finish", finish),
    ):
        yield


@contextlib.contextmanager
def mean_of_the_batch() -> Iterator[None]:
    """Divide a site's sum by the records that were there, as a loss of reduction "mean" does."""
    original = RecordSum.finish

    def finish(self: RecordSum) -> QuantisedDelta:
        summed = original(self)
        mean_d = np.rint(summed.values_d * (_BATCH / max(1, self._seen)))
        return QuantisedDelta(mean_d.astype(np.int64), summed.sensitivity)

    with mock.patch.object(RecordSum, "finish", finish):
        yield


@contextlib.contextmanager
def sampled_too_often() -> Iterator[None]:
    """Sample records at one and a half times the public rate."""

    def often(n_rows: int, rate: float, seed: bytes) -> NDArray[np.int64]:
        return poisson_sample(n_rows, min(1.0, _RATE * rate), seed)

    with mock.patch.object(row_draw, "poisson_sample", often):
        yield


@contextlib.contextmanager
def _secrets_by(key_of: KeyOf) -> Iterator[None]:
    """Have each update's secrets begin anew from a key."""
    with contextlib.ExitStack() as stack:
        for kind in (RecordSums, LocalDp, PlainTraining, CellCounts):
            stack.enter_context(mock.patch.object(kind, "make_update", _rekeyed(kind, key_of)))
        yield


def _rekeyed(
    kind: type[RecordSums | LocalDp | PlainTraining | CellCounts], key_of: KeyOf
) -> Callable[..., object]:
    original: Callable[..., object] = kind.make_update

    async def make_update(self: LocalRound, request: RoundRequest) -> object:
        with secrets_from(SeededSecrets(key_of(self, request))):
            return await original(self, request)  # type: ignore[misc]

    return make_update
