"""Say with a model version what its job's plan leaves open: the step size and the bases.

An announcement is public and part of the version chain, so all sites encode alike or their masks do
not cancel. Its canonical bytes are the scale (float64, little-endian) and the entries of the bases
(int8, row by row, matrix by matrix); a plan that leaves nothing open takes no bytes at all. Where a
plan does leave something open, no bytes stand for what follows from the plan alone: its own scale,
and bases drawn from the version's seed.

Whoever announces nonsense gains nothing: bases of any kind are scaled to norm 1 at most, the
sensitivity and the noise of modes that noise the sum do not rest on what is announced, and a scale
that is out of range is refused.
"""

import dataclasses
import math
import struct
from dataclasses import dataclass, field

from privacy.basis import Basis, first_basis
from privacy.compress import MapKind
from privacy.errors import PeerError, Reason
from privacy.pipeline import EncodingPlan
from privacy.secagg.encoding import hash_of

MAX_SHIFT = 2.0**40
"""The most by which an announced scale may differ from the plan's own, as a factor."""

_SCALE = struct.Struct("<d")


@dataclass(frozen=True, eq=False)
class Announcement:
    """What one version announces.

    Attributes:
        scale: s, grid steps per unit.
        basis: Its bases; None where the plan has no low-rank map.
    """

    scale: float
    basis: Basis | None = field(default=None, repr=False)

    @classmethod
    def from_bytes(cls, plan: EncodingPlan, version: int, raw: bytes) -> "Announcement":
        """Read what came with a version.

        Args:
            plan: The job's.
            version: The model version.
            raw: From the wire; see the module for no bytes.

        Raises:
            PeerError: MALFORMED: it is not of the plan's form; POLICY: the scale is none, or not
                the one that the plan fixes.
        """
        layout, seed = plan.low_rank, version_seed(plan, version)
        if not raw:
            basis = None if layout is None else first_basis(layout, version % 2, seed)
            return cls(plan.scale, basis)
        if (layout is None and not plan.announces_scale) or len(raw) < _SCALE.size:
            message = "an announcement came that the job's plan has no use for"
            raise PeerError(Reason.MALFORMED, message)
        scale: float = _SCALE.unpack_from(raw)[0]
        _check_scale(plan, scale)
        entries = raw[_SCALE.size :]
        if layout is None:
            if entries:
                raise PeerError(Reason.MALFORMED, "bases came for a map that has none")
            return cls(scale)
        return cls(scale, Basis.from_bytes(layout, version % 2, entries))

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return _SCALE.pack(self.scale) + (b"" if self.basis is None else self.basis.to_bytes())


def encoding_for_version(
    plan: EncodingPlan, version: int, announcement: bytes = b""
) -> EncodingPlan:
    """Give the plan of the updates that start from a model version.

    The map's seed is the version's, and what is announced takes its place. Metrics are given the
    same number of grid steps in every version, so that they come through whatever the step size.

    Args:
        plan: The job's.
        version: The model version.
        announcement: As it came with the version.

    Raises:
        PeerError: MALFORMED or POLICY: the announcement is none for this plan.
    """
    announced = Announcement.from_bytes(plan, version, announcement)
    if plan.map_kind is MapKind.IDENTITY:
        return plan
    layout, basis = plan.low_rank, announced.basis
    if layout is not None and basis is not None:
        layout = dataclasses.replace(layout, parity=version % 2, basis_digest=basis.digest)
    return dataclasses.replace(
        plan,
        map_seed=version_seed(plan, version),
        scale=announced.scale,
        clip_metrics=plan.clip_metrics * (plan.scale / announced.scale),
        low_rank=layout,
        basis=basis,
    )


def version_seed(plan: EncodingPlan, version: int) -> bytes:
    """Return the seed of a version's map, 32 bytes."""
    return hash_of("map", plan.map_seed, version)


def announced_bytes(plan: EncodingPlan, version: int) -> int:
    """Return the size of a version's announcement; 0 where the plan says all."""
    layout = plan.low_rank
    if layout is None:
        return _SCALE.size if plan.announces_scale else 0
    return _SCALE.size + sum(r * c for r, c in layout.basis_shapes(version % 2))


def _check_scale(plan: EncodingPlan, scale: float) -> None:
    fits = math.isfinite(scale) and plan.scale / MAX_SHIFT <= scale <= plan.scale * MAX_SHIFT
    if plan.announces_scale and not fits:
        raise PeerError(Reason.POLICY, "the announced step size is out of the plan's range")
    if not plan.announces_scale and scale != plan.scale:
        message = "this job's plan fixes the scale for good, and another one was announced"
        raise PeerError(Reason.POLICY, message)
