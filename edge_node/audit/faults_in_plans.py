"""Faults in what a plan derives: too small a sensitivity, too little noise for who survives.

Each is a context in which functions of the real derivation are replaced, in this process alone.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from unittest import mock

from privacy import encodings, local_noise, pipeline, quantise
from privacy.accounting.sensitivity import IntegerSensitivity, l1_sensitivity
from privacy.pipeline import EncodingPlan
from privacy.spec import VectorSpec
from privacy.surplus import NoiseLevel, choose_levels
from privacy.terms import CohortRules, PrivacyTerms

_SENSITIVITIES = (
    (quantise, "record_rounding_sensitivity"),
    (quantise, "sum_rounding_sensitivity"),
    (quantise, "conditional_rounding_sensitivity"),
    (pipeline, "conditional_rounding_sensitivity"),
    (encodings, "conditional_rounding_sensitivity"),
    (local_noise, "record_rounding_sensitivity"),
)


@contextlib.contextmanager
def rounding_omitted() -> Iterator[None]:
    """Take C * s for D2, as if rounding moved nothing."""

    def bare(clipping_norm: float, scale: float, d: int, *_more: object) -> IntegerSensitivity:
        reach = clipping_norm * scale
        return IntegerSensitivity(D1=l1_sensitivity(reach, d), D2=reach)

    with contextlib.ExitStack() as stack:
        for module, name in _SENSITIVITIES:
            stack.enter_context(mock.patch.object(module, name, bare))
        yield


@contextlib.contextmanager
def noise_split_among(sites: Callable[[CohortRules], int]) -> Iterator[None]:
    """Split V among more sites than the honest ones that are sure to survive."""

    def split(
        _terms: PrivacyTerms, _spec: VectorSpec, rules: CohortRules, _seed: bytes
    ) -> contextlib.AbstractContextManager[object]:
        return mock.patch.object(
            encodings, "site_variance", lambda variance, _n_min, _c: variance / sites(rules)
        )

    with _while_deriving(split):
        yield


@contextlib.contextmanager
def noise_for_the_clip_alone() -> Iterator[None]:
    """Size the noise by (z * C * s)^2, while D2 stands in the plan as it should."""

    def sized(
        terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, seed: bytes
    ) -> contextlib.AbstractContextManager[object]:
        grid = encodings._grid(terms, spec, rules, seed)  # noqa: SLF001 - what a mutant reads
        reach = math.hypot(terms.clipping_norm, terms.metrics_norm) * grid.scale
        return mock.patch.object(encodings, "required_variance", lambda z, _: (z * reach) ** 2)

    with _while_deriving(sized):
        yield


@contextlib.contextmanager
def _while_deriving(
    change: Callable[
        [PrivacyTerms, VectorSpec, CohortRules, bytes], contextlib.AbstractContextManager[object]
    ],
) -> Iterator[None]:
    """Change something while a plan of shared noise is derived, and only then."""
    original = encodings._shared_noise_encoding  # noqa: SLF001 - what a mutant replaces

    def derived(
        terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes, z: float
    ) -> EncodingPlan:
        with change(terms, spec, rules, map_seed):
            return original(terms, spec, rules, map_seed, z)

    with mock.patch.object(encodings, "_shared_noise_encoding", derived):
        yield


@contextlib.contextmanager
def surplus_of_colluders() -> Iterator[None]:
    """Let survivors take noise off until all of them, colluders too, just have V together."""

    def choose(share: int, n_min: int, colluders: int, most: int) -> tuple[NoiseLevel, ...]:
        whole = share * (n_min - colluders)
        return tuple(
            NoiseLevel(level.survivors, math.ceil(whole / level.survivors))
            for level in choose_levels(share, n_min, colluders, most)
        )

    with mock.patch.object(encodings, "choose_levels", choose):
        yield
