"""State what an attacker knows: everything but the records and the secret seeds.

The plan, its map and seed, scale, clip and noise, the architecture and its weights, the loss and
how local steps are taken are all public, and the attacks use all of it (Kerckhoffs).

Shapes: D = coordinates of the model vector, B = records, K = local steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from privacy.errors import UsageError
from privacy.leakage.fields import Batch, Field, draw_records
from privacy.pipeline import EncodingPlan, Mode
from privacy.spec import TensorSpec, VectorSpec

Loss = Callable[[nn.Module, Batch], Tensor]
OptimiserMaker = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

_PROBES = 4


@dataclass(frozen=True)
class Scene:
    """A job as an attacker sees it.

    Attributes:
        model: The job's module, on the device to compute on, with the weights of the version that
            is attacked.
        loss: One loss a record, shape (B,), of a batch of ``fields``.
        fields: The columns of a record.
        spec: The model's trainable parameters, in order.
        plan: The encoding, of any mode.
        sites: How many sites' updates the opened sum has: N_min.
        records: How many records each site's update is made of.
        local_steps: Steps that make a delta, in modes none, site and record-local. Each sees all
            of the site's records, which gives most away.
        learning_rate: Of plain descent; None where ``optimiser`` takes the steps.
        optimiser: Makes the optimizer of local steps; None for plain descent.
        nominal_steps: What a delta of ``local_steps`` is scaled to: a time-boxed round's cap; 0
            where every site takes ``local_steps``.

    Raises:
        UsageError: The parts do not fit each other.
    """

    model: nn.Module = field(repr=False)
    loss: Loss = field(repr=False)
    fields: tuple[Field, ...]
    spec: VectorSpec = field(repr=False)
    plan: EncodingPlan = field(repr=False)
    sites: int
    records: int
    local_steps: int = 1
    learning_rate: float | None = None
    optimiser: OptimiserMaker | None = field(default=None, repr=False)
    nominal_steps: int = 0

    def __post_init__(self) -> None:
        if not self.fields:
            raise UsageError("an audit makes records up, so it needs the columns of a record")
        if self.sites < 1 or self.records < 1 or self.local_steps < 1:
            raise UsageError("an audit needs at least one site, one record and one local step")
        if self.plan.spec_digest != self.spec.digest:
            raise UsageError("the plan was made for another model than the audited one")
        stepping = self.plan.mode is not Mode.RECORD_DISTRIBUTED
        if stepping and (self.learning_rate is None) == (self.optimiser is None):
            raise UsageError("local steps need either a learning rate or an optimiser")
        local = self.plan.local
        most = self.nominal_steps or self.local_steps
        if local is not None and local.steps != most:
            raise UsageError(f"the plan has {local.steps} local steps, not {most}")
        if most < self.local_steps:
            raise UsageError(f"a site takes at most {most} steps, not {self.local_steps}")
        known = dict(self.model.named_parameters())
        for tensor in self.spec.tensors:
            found = known.get(tensor.name)
            if found is None or tuple(found.shape) != tensor.shape:
                raise UsageError(f"the model has no parameter {tensor.name!r} of {tensor.shape}")

    @property
    def step_factor(self) -> float:
        """Return what a delta is multiplied by before the clip; public within its range."""
        return (self.nominal_steps or self.local_steps) / self.local_steps

    @cached_property
    def device(self) -> torch.device:
        """Return where the model is."""
        return next(iter(self.model.parameters())).device

    @cached_property
    def parameters(self) -> list[Tensor]:
        """Return the attacked version's trainable parameters, in the order of the spec."""
        known = dict(self.model.named_parameters())
        return [known[tensor.name].detach().clone() for tensor in self.spec.tensors]

    @cached_property
    def _around(self) -> "_Around":
        return _Around(self.model, self.loss)

    def losses(self, parameters: Sequence[Tensor], batch: Batch) -> Tensor:
        """Evaluate the loss of each record at given parameters, shape (B,)."""
        names = (f"model.{tensor.name}" for tensor in self.spec.tensors)
        named = dict(zip(names, parameters, strict=True))
        losses_B: Tensor = functional_call(self._around, named, (batch,))
        return losses_B.to(torch.float32)

    def run(self, batch: Batch) -> None:
        """Run loss and model once on a batch, for the sake of hooks."""
        with torch.no_grad():
            self.loss(self.model, batch)

    def draw(self, count: int, source: torch.Generator) -> dict[str, Tensor]:
        """Make records up on the model's device; targets without categories are 0 or 1."""
        drawn = draw_records(self.fields, count, source, self.binary_targets)
        return {name: values.to(self.device) for name, values in drawn.items()}

    def placed(self, flat_D: Tensor) -> dict[str, Tensor]:
        """Show a flat vector as named tensors that share its memory."""
        sizes = [tensor.size for tensor in self.spec.tensors]
        parts = zip(self.spec.tensors, flat_D.split(sizes), strict=True)
        return {tensor.name: part.reshape(tensor.shape) for tensor, part in parts}

    @cached_property
    def targets(self) -> frozenset[str]:
        """Name the columns that the loss sees and the model does not: what it learns to say."""
        return frozenset(f.name for f in self.fields if f.size == 1 and self._is_target(f))

    @cached_property
    def binary_targets(self) -> frozenset[str]:
        """Name the targets that are numbers between 0 and 1: labels without declared levels."""
        chosen = [f for f in self.fields if f.levels is None and f.bounds == (0.0, 1.0)]
        return frozenset(f.name for f in chosen if not f.is_whole and f.name in self.targets)

    def _is_target(self, target: Field) -> bool:
        source = torch.Generator().manual_seed(0)
        drawn = draw_records(self.fields, _PROBES, source)
        batch = {name: values.to(self.device) for name, values in drawn.items()}
        other = draw_records((target,), _PROBES, source)[target.name].to(self.device)
        first, losses_first = self._outcome(batch)
        second, losses_second = self._outcome({**batch, target.name: other})
        if first is None or second is None:
            return False
        return torch.equal(first, second) and not torch.equal(losses_first, losses_second)

    def _outcome(self, batch: Batch) -> tuple[Tensor | None, Tensor]:
        """Give what the model last said on the way to the loss, and the losses."""
        seen: list[Tensor] = []
        hook = self.model.register_forward_hook(lambda _m, _i, out: seen.extend(_tensors(out)))
        try:
            with torch.no_grad():
                losses_B = self.loss(self.model, batch)
        finally:
            hook.remove()
        return (torch.cat([t.reshape(-1).float() for t in seen]) if seen else None), losses_B


def _tensors(value: object) -> list[Tensor]:
    """Find the tensors of what a model returns."""
    if isinstance(value, Tensor):
        return [value]
    items: Sequence[object] = ()
    if isinstance(value, dict):
        items = list(value.values())
    elif isinstance(value, (tuple, list)):
        items = value
    return [tensor for item in items for tensor in _tensors(item)]


class _Around(nn.Module):
    """The loss as a module around the model, so that parameters can be given by name."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Batch) -> Tensor:
        return self._loss(self.model, batch)


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """Hold a model still: no dropout, no parameter that asks for a gradient of its own."""
    modes = [(module, module.training) for module in model.modules()]
    asked = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    for parameter, _ in asked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, wanted in asked:
            parameter.requires_grad_(wanted)


@contextmanager
def with_weights(scene: Scene, weights: Sequence[Tensor]) -> Iterator[Scene]:
    """Give the scene at other weights of the same architecture, as a hostile version would be."""
    known = dict(scene.model.named_parameters())
    held = [known[tensor.name] for tensor in scene.spec.tensors]
    before = [parameter.detach().clone() for parameter in held]
    with torch.no_grad():
        for parameter, weight in zip(held, weights, strict=True):
            parameter.copy_(weight)
    try:
        yield replace(scene)
    finally:
        with torch.no_grad():
            for parameter, weight in zip(held, before, strict=True):
                parameter.copy_(weight)


def tensor_named(scene: Scene, name: str) -> TensorSpec | None:
    """Find a trainable parameter by name."""
    return next((tensor for tensor in scene.spec.tensors if tensor.name == name), None)
