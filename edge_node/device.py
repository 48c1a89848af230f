"""Pick the device that the app computes on: the one place that knows the makers.

torch names AMD's ROCm devices ``cuda`` too. Makers' packages are loaded only where their hardware
is asked for or found.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from tidegate.confine.jail_root import existing_nodes

if TYPE_CHECKING:  # the supervisor asks for device files before torch may be loaded
    import torch

# Device files under /dev.
_NODES = {
    "cuda": ("nvidia*", "nvidia-caps/*", "kfd", "dri/*"),
    "npu": ("davinci*", "devmm_svm", "hisi_hdc"),
}


def device_nodes(preference: str) -> tuple[str, ...]:
    """List the device files that a trainer needs, none for the CPU.

    Args:
        preference: ``auto``, ``cpu``, or a torch device such as ``cuda:1``.
    """
    kind = preference.partition(":")[0]
    kinds = tuple(_NODES) if kind == "auto" else (kind,)
    return tuple(node for name in kinds for node in existing_nodes(_NODES.get(name, ())))


def pick_device(preference: str) -> torch.device:
    """Pick the torch device: what is asked for, or the first accelerator that is there.

    Raises:
        ValueError: The device asked for does not exist on this machine.
    """
    import torch  # noqa: PLC0415

    if preference in {"auto", "npu"} or preference.startswith("npu:"):
        _load_maker("torch_npu")
    if preference != "auto":
        device = torch.device(preference)
        if not _available(torch, device.type):
            raise ValueError(f"the device {preference!r} does not exist on this machine")
        return device
    for kind in _NODES:
        if _available(torch, kind):
            return torch.device(kind)
    return torch.device("cpu")


def _load_maker(package: str) -> None:
    if importlib.util.find_spec(package) is not None:
        importlib.import_module(package)  # registers its device with torch


def _available(torch_module: object, kind: str) -> bool:
    if kind == "cpu":
        return True
    backend = getattr(torch_module, kind, None)
    return backend is not None and bool(backend.is_available())
