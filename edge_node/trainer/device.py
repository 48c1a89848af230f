"""Pick the device that the app computes on: the one place that knows the makers.

Everything that differs from maker to maker stands in one table: what torch calls the device, the
files that the sandbox must show, the package that teaches torch about it, the library that ranks
talk by. The daemon reads device files and the name of torch's build, for it must not load torch;
the trainer asks torch itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.confine.jail_root import existing_nodes

if TYPE_CHECKING:  # the supervisor asks for device files before torch may be loaded
    import torch

AUTO = "auto"
CPU = "cpu"
FLOAT32 = "float32"
BF16 = "bf16"
PRECISIONS = (FLOAT32, BF16, AUTO)


@dataclass(frozen=True)
class _Maker:
    """One kind of device.

    Attributes:
        kind: What configuration and displays call it.
        torch_type: What torch calls it.
        nodes: Device files that its driver needs, under /dev.
        found_by: Device files that are there only where the hardware is.
        builds: What the local part of torch's version starts with in a build for it; empty where
            a package of its own adds it to any build.
        package: That package.
        environment: Variables that choose among devices and say where its driver lies.
        places: Folders and files beyond /sys and /opt that its driver reads.
        collectives: The torch.distributed backend.
    """

    kind: str
    torch_type: str
    nodes: tuple[str, ...] = ()
    found_by: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    package: str = ""
    environment: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    collectives: str = "gloo"


# In the order in which they are looked for. torch names AMD's devices like NVIDIA's; a build
# without a local version is NVIDIA's.
_MAKERS = (
    _Maker(
        kind="cuda",
        torch_type="cuda",
        nodes=("nvidia*", "nvidia-caps/*"),
        found_by=("nvidia[0-9]*",),
        builds=("", "cu"),
        environment=("CUDA_VISIBLE_DEVICES",),
        collectives="nccl",
    ),
    _Maker(
        kind="rocm",
        torch_type="cuda",
        nodes=("kfd", "dri/*"),
        found_by=("kfd",),
        builds=("rocm",),
        environment=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        collectives="nccl",
    ),
    _Maker(
        kind="npu",
        torch_type="npu",
        nodes=("davinci*", "devmm_svm", "hisi_hdc"),
        found_by=("davinci[0-9]*",),
        package="torch_npu",
        environment=("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH"),
        places=("/etc/ascend_install.info",),
        collectives="hccl",
    ),
    _Maker(
        kind="xpu",
        torch_type="xpu",
        nodes=("dri/*",),
        found_by=("dri/renderD*",),
        builds=("xpu",),
        environment=("ZE_AFFINITY_MASK",),
        places=("/etc/OpenCL",),
        collectives="xccl",
    ),
    _Maker(kind="mps", torch_type="mps"),
)
KINDS = (*(maker.kind for maker in _MAKERS), CPU)
_LIBRARY_PATH = "LD_LIBRARY_PATH"
_REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Matrix products of one maker's library are deterministic only with it."""


def device_kind(preference: str) -> str:
    """Say what kind of device a trainer will most likely find, without loading torch.

    The trainer's own word after its start is better, for only a driver knows whether it works.

    Args:
        preference: ``auto`` or a device, as configured.
    """
    kind = preference.partition(":")[0]
    if kind != AUTO:
        return kind
    return next((maker.kind for maker in _MAKERS if _seems_there(maker)), CPU)


def device_nodes(preference: str) -> tuple[str, ...]:
    """List the device files that a trainer needs, none for the CPU.

    Args:
        preference: ``auto`` or a device, as configured.
    """
    found = (existing_nodes(maker.nodes) for maker in _shown(preference))
    return tuple(dict.fromkeys(node for nodes in found for node in nodes))


def device_places(preference: str) -> tuple[str, ...]:
    """List the folders and files that drivers read, for a process that is shown device files."""
    return tuple(place for maker in _shown(preference) for place in maker.places)


def device_environment() -> dict[str, str]:
    """Give the variables that a trainer is passed on from the daemon, or needs for its device."""
    names = [name for maker in _MAKERS for name in maker.environment]
    held = {name: os.environ[name] for name in (*names, _LIBRARY_PATH) if name in os.environ}
    return held | _REPEATABLE


def rank_environment() -> dict[str, str]:
    """Give the variables by which ranks talk over the loopback and look for nothing else."""
    return {f"{library}_SOCKET_IFNAME": "lo" for library in ("GLOO", "NCCL", "HCCL", "CCL")}


def pick_device(preference: str, rank: int = 0) -> torch.device:
    """Pick the torch device: what is asked for, or the first accelerator that is there.

    Args:
        preference: ``auto``, one of `KINDS`, or one with a number such as ``cuda:1``.
        rank: Which of the trainer's processes asks; each takes the next accelerator.

    Raises:
        ValueError: The device asked for does not exist on this machine.
    """
    import torch  # noqa: PLC0415

    kind, _, number = preference.partition(":")
    if kind not in {AUTO, *KINDS}:
        raise ValueError(f"device {preference!r} is not known; known are auto, {', '.join(KINDS)}")
    for maker in _asked_for(preference):
        _load_package(maker)
        module = _working(torch, maker)
        if module is None:
            continue
        index = int(number or 0) + rank
        if index >= module.device_count():
            raise ValueError(f"there is no {maker.kind}:{index} on this machine for rank {rank}")
        return torch.device(maker.torch_type, index)
    if kind not in {AUTO, CPU}:
        raise ValueError(f"the device {preference!r} does not exist on this machine")
    return torch.device(CPU)


def device_name(device: torch.device) -> str:
    """Give a torch device the name that configuration uses for it."""
    import torch  # noqa: PLC0415

    index = "" if device.index is None else f":{device.index}"
    return f"{_kind_of(torch, device.type)}{index}"


def collectives(device: torch.device) -> str:
    """Name the torch.distributed backend by which ranks on such a device talk."""
    return next((m.collectives for m in _MAKERS if m.torch_type == device.type), "gloo")


def choose_precision(device: torch.device, precision: str) -> str:
    """Resolve ``auto``: bf16 where the device computes in it natively, else float32.

    fp16 is not on offer. It needs loss scaling, which leaves out steps that overflow, and a step
    that is left out because of the data tells of the data (privacy.md, D-REC 3).
    """
    import torch  # noqa: PLC0415

    if precision != AUTO:
        return precision
    module = getattr(torch, device.type, None)
    supported = getattr(module, "is_bf16_supported", None)
    return BF16 if device.type != CPU and supported is not None and supported() else FLOAT32


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Compute the forward pass within this: parameters and gradients stay float32."""
    import torch  # noqa: PLC0415

    if choose_precision(device, precision) == FLOAT32:
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def _asked_for(preference: str) -> list[_Maker]:
    kind = preference.partition(":")[0]
    return [maker for maker in _MAKERS if kind in {AUTO, maker.kind}]


def _shown(preference: str) -> list[_Maker]:
    """Leave out what is not there: a display's device file is no reason for a laxer sandbox."""
    makers = _asked_for(preference)
    return makers if preference != AUTO else [maker for maker in makers if _seems_there(maker)]


def _seems_there(maker: _Maker) -> bool:
    if not existing_nodes(maker.found_by):
        return False
    if maker.package:
        return importlib.util.find_spec(maker.package) is not None
    from importlib.metadata import version  # noqa: PLC0415 - slow, and few machines need it

    local = version("torch").partition("+")[2]
    return any(local.startswith(build) if build else not local for build in maker.builds)


def _load_package(maker: _Maker) -> None:
    if maker.package and importlib.util.find_spec(maker.package) is not None:
        importlib.import_module(maker.package)  # registers its device with torch


def _working(torch_module: Any, maker: _Maker) -> Any:
    module = getattr(torch_module, maker.torch_type, None)
    if module is None or not module.is_available():
        return None
    return module if _kind_of(torch_module, maker.torch_type) == maker.kind else None


def _kind_of(torch_module: Any, torch_type: str) -> str:
    if torch_type == "cuda" and torch_module.version.hip is not None:
        return "rocm"
    return torch_type
