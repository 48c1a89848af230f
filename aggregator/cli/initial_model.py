"""Build a task's initial model: ``python -m aggregator.cli.initial_model FOLDER FILE SEED OUT``.

A program of its own, so that the command line does not load torch and an app's code never shares
the process that holds the operator's keys.
"""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from privacy.errors import TidegateError, UsageError
from privacy.spec import VectorSpec


def load_task(folder: Path, file: str) -> ModuleType:
    """Import a task file from an app folder without writing byte code beside it.

    Raises:
        UsageError: The file is missing, or raised while it was imported; names its line.
    """
    path = folder / file
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("tidegate_task", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError("does not exist: [task] file in job.toml names it")
    task = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(task)
    except (Exception, SystemExit) as error:
        raise _blamed(error, folder) from error
    return task


def build(task: ModuleType, seed: int) -> tuple[bytes, bytes]:
    """Return the canonical vector spec and the flat float32 vector of the task's fresh model."""
    if not callable(getattr(task, "model", None)):
        raise UsageError("the task defines no `model()` that returns a torch.nn.Module")
    if not callable(getattr(task, "loss", None)):
        raise UsageError("the task defines no `loss(model, batch)`")
    torch.manual_seed(seed)
    module = task.model()
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"model() returned {type(module).__name__}, not a torch.nn.Module")
    # As sites take them (edge_node.task): what is frozen is no part of the vector.
    trained = {name: part for name, part in module.named_parameters() if part.requires_grad}
    for name, parameter in trained.items():
        if parameter.dtype != torch.float32 or parameter.is_meta:
            kind = "on the meta device" if parameter.is_meta else str(parameter.dtype)
            raise UsageError(f"parameter {name!r} is {kind}; it must be float32, with values")
    if not trained:
        raise UsageError("model() has no trainable parameter")
    arrays = {name: parameter.detach().cpu().numpy() for name, parameter in trained.items()}
    spec = VectorSpec.of(arrays)
    flat_D = spec.flatten(arrays)
    if not np.isfinite(flat_D).all():
        raise UsageError("the initial model holds values that are not finite")
    return spec.to_bytes(), flat_D.tobytes()


def _blamed(error: BaseException, folder: Path) -> UsageError:
    """Name the last line of the app that an error came through, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    where = f"line {inside[-1].lineno}: " if inside else ""
    return UsageError(f"{where}{type(error).__name__}: {error}")


def main() -> None:
    """Write ``spec`` and ``model`` into the output folder."""
    folder, file, seed, out = sys.argv[1:5]
    try:
        task = load_task(Path(folder), file)
        try:
            spec, model = build(task, int(seed))
        except TidegateError:
            raise
        except (Exception, SystemExit) as error:
            raise _blamed(error, Path(folder)) from error
    except TidegateError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    (Path(out) / "spec").write_bytes(spec)
    (Path(out) / "model").write_bytes(model)


if __name__ == "__main__":
    main()
