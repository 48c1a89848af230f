"""Let a trainer's ranks train one model together: DDP, FSDP, or records shared out.

Modes ``none`` and ``site`` take steps on the mean loss: each rank has a share of the batch and
torch averages the gradients, which comes to one process' step on the whole batch but for the order
of sums. DDP holds the whole model in each rank, FSDP a share of each parameter. Per-record
gradients need no talk between ranks: each evaluates its share of the rows.

Shapes: D = coordinates, P = rows of a physical batch, n = rows of a batch, W = numbers of a row,
M = metrics a record.
"""

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from edge_node.tasks.flat_model import FlatModel
from edge_node.tasks.record_gradients import Outputs, RecordGradients
from edge_node.tasks.task import Batch, Task, TaskError
from edge_node.trainer.device import autocast, collectives, rank_environment
from edge_node.trainer.frames import Start
from edge_node.trainer.ranks import Rank, RanksUnavailableError
from privacy.spec import VectorSpec

FSDP = "fsdp"
_MEETING_PLACE = "/tmp/ranks"  # noqa: S108 - in the sandbox, whose /tmp is its own


def join(rank: Rank, device: torch.device, *, loopback: bool) -> None:
    """Connect the ranks, before the sandbox's filter refuses new sockets.

    They meet at a file and talk over the loopback of their own network namespace, which leads
    nowhere else.

    Args:
        rank: This process among them.
        device: What it computes on.
        loopback: Whether there is such a namespace.

    Raises:
        RanksUnavailableError: There is none. The machine's own loopback would show gradients to
            every user of the machine, and take them from every one.
    """
    if not loopback:
        raise RanksUnavailableError("the trainer has no network namespace of its own")
    os.environ.update(rank_environment())
    store = dist.FileStore(  # type: ignore[attr-defined]
        _MEETING_PLACE, rank.count
    )
    dist.init_process_group(
        collectives(device), store=store, rank=rank.index, world_size=rank.count
    )
    dist.all_reduce(torch.zeros(1, device=device))  # whatever is opened lazily is open now


class _TaskModule(nn.Module):
    """A task's loss and metrics as the forward pass of a module, whose hooks torch hangs on to."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self._task = task

    def forward(self, batch: Batch, count: int, metrics_length: int = 0) -> Tensor:
        if metrics_length:
            return self._task.metric_rows(batch, count, metrics_length)
        return self._task.losses(batch, count)


class SharedSteps:
    """Gradient steps on the mean loss over a batch that the ranks share; see ``LocalSteps``."""

    def __init__(self, task: Task, spec: VectorSpec, rank: Rank, start: Start) -> None:
        """Prepare the steps; all ranks must.

        Args:
            task: The task, its model on the device to compute on.
            spec: Its trainable parameters.
            rank: This process; the ranks are joined.
            start: What the daemon asked for.

        Raises:
            TaskError: The task has no such optimizer, or its model cannot be shared out.
        """
        self._task = task
        self._rank = rank
        self._schema = start.schema
        self._precision = start.precision
        self._metrics_length = start.metrics_length
        form = _Sharded if start.parallel == FSDP else _Replicated
        self._form: _Sharded | _Replicated = form(task, spec)
        parameters = self._form.parameters
        self._optimizer = task.make_optimizer(parameters) if start.own_optimiser else None

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version to start from, shape (D,)."""
        self._form.set(model_D)

    def step(self, rows_nW: Tensor, learning_rate: float, metrics_nM: Tensor | None = None) -> None:
        """Take one step on the mean loss of a batch, of which this rank evaluates its share.

        Args:
            rows_nW: The whole batch, shape (n, W).
            learning_rate: Of plain descent; the task's optimizer has its own.
            metrics_nM: This rank's share is filled with its records' metrics, shape (n, M).

        Raises:
            TaskError: The loss or the metrics have a wrong shape.
            Exception: Whatever the app raises, and torch where another rank is gone.
        """
        share = self._rank.share(len(rows_nW))
        empty = share.start == share.stop
        # Every rank must take part: one without a row evaluates the first, at weight zero.
        mine = rows_nW[:1] if empty else rows_nW[share]
        count = len(mine)
        batch = self._task.batch(mine.to(self._form.device), self._schema)
        if self._metrics_length and metrics_nM is not None:
            with torch.no_grad():
                metrics = self._form.module(batch, count, self._metrics_length)
            if not empty:
                metrics_nM[share].copy_(metrics)
        for parameter in self._form.parameters:
            parameter.grad = None
        with autocast(self._form.device, self._precision):
            losses = self._form.module(batch, count)
        # torch takes the mean over the ranks of what each gives.
        weight = 0.0 if empty else self._rank.count / len(rows_nW)
        (losses.float().sum() * weight).backward()
        self._descend(learning_rate)

    def read_model(self, out_D: Tensor) -> None:
        """Write the trained parameters to a vector that all ranks share, shape (D,)."""
        trained_D = self._form.full()
        if self._rank.index == 0:
            out_D.copy_(trained_D)

    def _descend(self, learning_rate: float) -> None:
        for parameter in self._form.parameters:
            if parameter.grad is None:  # not used by the loss
                parameter.grad = torch.zeros_like(parameter)
        if self._optimizer is not None:
            self._optimizer.step()
            return
        with torch.no_grad():
            for parameter in self._form.parameters:
                gradient: Any = parameter.grad
                parameter.add_(gradient, alpha=-learning_rate)


class _Replicated:
    """DDP: each rank holds the model, in one flat vector."""

    def __init__(self, task: Task, spec: VectorSpec) -> None:
        self._flat = FlatModel(task.model, spec)
        self.parameters = self._flat.parameters
        self.device = self._flat.device
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.module: nn.Module = DistributedDataParallel(
                _TaskModule(task), find_unused_parameters=True, broadcast_buffers=False
            )

    def set(self, model_D: Tensor) -> None:
        self._flat.set(model_D)

    def full(self) -> Tensor:
        return self._flat.vector_D


class _Sharded:
    """FSDP: each rank holds a share of each parameter, and the whole only while it is needed."""

    def __init__(self, task: Task, spec: VectorSpec) -> None:
        self.device = next(task.model.parameters()).device
        world: Any = dist.group.WORLD
        mesh = DeviceMesh.from_group(world, self.device.type)
        module: nn.Module = _TaskModule(task)
        try:
            for inner in task.model.modules():
                if isinstance(inner, nn.ModuleList | nn.Sequential):
                    for block in inner.children():
                        if next(block.parameters(), None) is not None:
                            fully_shard(block, mesh=mesh)
            fully_shard(module, mesh=mesh)
        except ValueError as error:
            raise TaskError(f"the model cannot be sharded by FSDP, use ddp: {error}") from error
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(enable=True)  # gloo has no mean
        self.module = module
        self._sizes = [tensor.size for tensor in spec.tensors]
        named = dict(task.model.named_parameters())
        self.parameters = [named[tensor.name] for tensor in spec.tensors]

    def set(self, model_D: Tensor) -> None:
        self._reshard()
        with torch.no_grad():
            for shard, part_D in zip(self._shards(), model_D.split(self._sizes), strict=True):
                whole = part_D.view(shard.shape).to(self.device)
                # Each rank has the whole vector: nothing is sent.
                mine = distribute_tensor(
                    whole, shard.device_mesh, shard.placements, src_data_rank=None
                )
                shard.to_local().copy_(mine.to_local())

    def full(self) -> Tensor:
        self._reshard()
        with torch.no_grad():
            return torch.cat([shard.full_tensor().reshape(-1) for shard in self._shards()])

    def _reshard(self) -> None:
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    def _shards(self) -> list[DTensor]:
        return [shard for shard in self.parameters if isinstance(shard, DTensor)]


class SharedGradients:
    """Per-record gradients of a rank's share of the rows; see ``RecordGradients``."""

    def __init__(self, engine: RecordGradients, rank: Rank) -> None:
        """Take what evaluates a share and whose it is."""
        self._engine = engine
        self._rank = rank

    def set_model(self, model_D: Tensor) -> None:
        """Take the model version that gradients are evaluated at, shape (D,)."""
        self._engine.set_model(model_D)

    def __call__(self, rows_PW: Tensor, gradients_PD: Tensor, metrics_PM: Tensor) -> None:
        """Evaluate this rank's share of a physical batch, in the arrays that all ranks share."""
        share = self._rank.share(len(rows_PW))
        self._engine(rows_PW[share], gradients_PD[share], metrics_PM[share])

    def check_independence(self, first: Outputs, second: Outputs) -> None:
        """Check this rank's share of the slots, as ``RecordGradients`` does, then all shares.

        Every rank evaluates the same made-up rows, each in its share. A record's place in a batch
        decides which rank evaluates it, and may not decide its gradient.

        Args:
            first: Room for a physical batch's results that all ranks share, (P, D) and (P, M).
            second: The same again.

        Raises:
            TaskError: A rank's rows depend on each other, or two ranks give a row other bits.
            Exception: Whatever the app raises.
        """
        share = self._rank.share(len(first[0]))
        self._engine.check_independence(
            (first[0][share], first[1][share]), (second[0][share], second[1][share])
        )
        self._rank.meet()
        if self._rank.index == 0:  # it alone knows that the others have come so far
            _compare_shares(second, self._rank.count)


def _compare_shares(outputs: Outputs, count: int) -> None:
    for part in outputs:
        shares = part.view(torch.int32).chunk(count)
        if not all(torch.equal(shares[0], share) for share in shares):
            raise TaskError(
                "the trainer's processes give a record different gradients; set [trainer]"
                " processes = 1 at this site"
            )
