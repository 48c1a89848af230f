"""Which device is picked, with makers' packages and hardware that are made up."""

import subprocess
import sys
import textwrap

import pytest
import torch

from edge_node.trainer import device
from edge_node.trainer.device import (
    autocast,
    choose_precision,
    collectives,
    device_environment,
    device_kind,
    device_name,
    device_nodes,
    device_places,
    pick_device,
)

# A vendor's package: it renames torch's spare backend when it is imported, as a real one does.
PACKAGE = """
import types, torch
torch.utils.rename_privateuse1_backend("npu")
module = types.ModuleType("torch.npu")
module.is_available = lambda: True
module.device_count = lambda: 2
module.is_bf16_supported = lambda: True
torch._register_device_module("npu", module)
"""


def in_a_process(code, path=""):
    """Run code apart: a backend once renamed stays so."""
    head = f"import sys; sys.path.insert(0, {str(path)!r})\nfrom edge_node.trainer import device\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_a_vendors_package_is_found_loaded_and_its_device_picked(tmp_path):
    (tmp_path / "torch_npu.py").write_text(PACKAGE)
    said = in_a_process(
        """
        for preference, rank in (("auto", 0), ("auto", 1), ("npu", 0), ("npu:1", 0)):
            found = device.pick_device(preference, rank)
            print(found, device.device_name(found), device.collectives(found))
        print(device.choose_precision(found, "auto"), device.pick_device("cpu"))
        try:
            device.pick_device("npu:1", 1)
        except ValueError as error:
            print("refused" if "npu:2" in str(error) else error)
        """,
        tmp_path,
    )
    names = [name for index in (0, 1, 0, 1) for name in (f"npu:{index}", f"npu:{index}", "hccl")]
    assert said == [*names, "bf16", "cpu", "refused"]


def test_amd_devices_are_called_rocm_though_torch_calls_them_otherwise():
    said = in_a_process(
        """
        import torch
        torch.version.hip = "6.4"
        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 1
        for preference in ("auto", "rocm", "rocm:0"):
            found = device.pick_device(preference)
            print(found, device.device_name(found))
        try:
            device.pick_device("cuda")
        except ValueError:
            print("refused")
        """
    )
    assert said == ["cuda:0", "rocm:0"] * 3 + ["refused"]


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu", "mps"])
def test_each_kind_that_torch_reports_is_picked(monkeypatch, kind):
    torch_type = "cuda" if kind == "rocm" else kind
    module = getattr(torch, torch_type)
    monkeypatch.setattr(module, "is_available", lambda: True)
    monkeypatch.setattr(module, "device_count", lambda: 3)
    monkeypatch.setattr(torch.version, "hip", "6.4" if kind == "rocm" else None)
    for preference in ("auto", kind):
        assert pick_device(preference) == torch.device(torch_type, 0)
    assert device_name(pick_device(f"{kind}:1", rank=1)) == f"{kind}:2"
    with pytest.raises(ValueError, match=f"{kind}:3"):
        pick_device(f"{kind}:2", rank=1)


def test_without_an_accelerator_it_is_the_cpu_for_every_rank(monkeypatch):
    for name in ("cuda", "xpu", "mps"):
        monkeypatch.setattr(getattr(torch, name), "is_available", lambda: False)
    assert pick_device("auto") == pick_device("auto", rank=3) == torch.device("cpu")
    assert device_name(torch.device("cpu")) == "cpu"
    for preference in ("cuda", "rocm:1", "npu", "mps"):
        with pytest.raises(ValueError, match="does not exist"):
            pick_device(preference)
    with pytest.raises(ValueError, match="known are auto, cuda"):
        pick_device("hpu")


def hardware(monkeypatch, nodes, build):
    """Pretend that device files are there, and that torch was built for something."""
    present = {pattern: [f"/dev/{pattern.replace('*', '0')}"] for pattern in nodes}
    monkeypatch.setattr(
        device, "existing_nodes", lambda patterns: [n for p in patterns for n in present.get(p, [])]
    )
    monkeypatch.setattr("importlib.metadata.version", lambda _: build)


@pytest.mark.parametrize(
    ("nodes", "build", "kind"),
    [
        (("nvidia[0-9]*", "nvidia*"), "2.9.0", "cuda"),
        (("nvidia[0-9]*", "nvidia*"), "2.9.0+cu128", "cuda"),
        (("nvidia[0-9]*", "nvidia*"), "2.9.0+cpu", "cpu"),
        (("kfd", "dri/*", "dri/renderD*"), "2.9.0+rocm6.4", "rocm"),
        (("kfd", "dri/*", "dri/renderD*"), "2.9.0", "cpu"),
        (("dri/*", "dri/renderD*"), "2.9.0+xpu", "xpu"),
        (("dri/*", "dri/renderD*"), "2.9.0+cpu", "cpu"),
        (("davinci[0-9]*", "davinci*"), "2.9.0+cpu", "cpu"),
        ((), "2.9.0", "cpu"),
    ],
)
def test_the_kind_is_told_from_device_files_and_torchs_build(monkeypatch, nodes, build, kind):
    hardware(monkeypatch, nodes, build)
    assert device_kind("auto") == kind
    # What is not used is not shown: without device files the sandbox is the strict one.
    assert bool(device_nodes("auto")) == (kind != "cpu")


def test_a_package_of_its_own_makes_any_build_one_for_its_device(monkeypatch):
    hardware(monkeypatch, ("davinci[0-9]*", "davinci*", "hisi_hdc"), "2.9.0+cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "torch_npu" or None)
    assert device_kind("auto") == "npu"
    assert device_nodes("auto") == ("/dev/davinci0", "/dev/hisi_hdc")
    assert device_places("auto") == ("/etc/ascend_install.info",)


def test_what_is_configured_is_the_kind_and_its_files(monkeypatch):
    hardware(monkeypatch, ("nvidia*", "kfd", "dri/*"), "2.9.0")
    assert [device_kind(name) for name in ("cuda:1", "rocm", "cpu")] == ["cuda", "rocm", "cpu"]
    assert device_nodes("cuda:1") == ("/dev/nvidia0",)
    assert device_nodes("rocm") == ("/dev/kfd", "/dev/dri/0")
    assert device_nodes("cpu") == ()


def test_the_choice_of_devices_is_passed_on_and_nothing_else(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("SECRET", "hush")
    environment = device_environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert "SECRET" not in environment


def test_bf16_is_for_the_forward_pass_only():
    cpu = torch.device("cpu")
    weight = torch.randn(4, 4, requires_grad=True)
    for precision, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        with autocast(cpu, precision):
            product = torch.ones(2, 4) @ weight
        assert product.dtype == dtype
        (gradient,) = torch.autograd.grad(product.float().sum(), weight)
        assert gradient.dtype == torch.float32
    assert choose_precision(cpu, "auto") == "float32"
    assert collectives(cpu) == "gloo"


def test_the_module_itself_loads_nothing_heavy():
    assert in_a_process("print(sorted({'torch', 'numpy'} & set(sys.modules)))") == ["[]"]
