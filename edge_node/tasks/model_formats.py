"""Give a released model formats that run without Tidegate: torch.export and ONNX.

A program of its own, ``python -m edge_node.tasks.model_formats APP JOB MODEL OUT [NAME=PATH ...]``,
as the app's code must not share a process with an operator's keys. The graph is what the task's
``predict(model, batch)`` computes, ``model(batch)`` where there is none, from the raw columns that
it looks at. What is written is run again and compared before the program says that it is done.

Shapes: B = records of a batch.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from edge_node.tasks.batches import Batch, draw_rows, read_batch
from edge_node.tasks.task import Task, TaskError, load_task
from privacy.errors import TidegateError, UsageError
from tidegate.app_faults import describe_fault
from tidegate.jobfile import JobFile

SUFFIXES = {".pt2": "torch-export", ".onnx": "onnx"}
_ROWS = 4
_TOLERANCE = 1e-4  # relative to the largest value: another runtime adds in another order


class _Watched(Mapping[str, Tensor]):
    """A batch that remembers which columns were looked at."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.seen: dict[str, None] = {}

    def __getitem__(self, name: str) -> Tensor:
        values = self._batch[name]
        self.seen[name] = None
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch)

    def __len__(self) -> int:
        return len(self._batch)


class Predictor(nn.Module):
    """A task's prediction as a module of single tensors, which every exporter takes."""

    def __init__(
        self, task: Task, predict: Callable[[nn.Module, Any], Any], names: list[str]
    ) -> None:
        """Take the task, what to compute, and the columns it looks at, in order."""
        super().__init__()
        self.model = task.model
        self._collate = task.collate
        self._predict = predict
        self._names = names

    def forward(self, *columns: Tensor) -> Any:
        """Predict from columns, each of shape (B, ...)."""
        batch = dict(zip(self._names, columns, strict=True))
        return self._predict(self.model, batch if self._collate is None else self._collate(batch))


def convert(task: Task, predict: Callable[..., Any], batch: Batch, out: Path) -> dict[str, object]:
    """Write a task's prediction in the format that the file's name ends with.

    Args:
        task: With the released weights in its model.
        predict: ``predict(model, batch)``.
        batch: An example, by column.
        out: ``.pt2`` for torch.export, ``.onnx`` for ONNX.

    Returns:
        Names of the inputs, and the largest difference seen when the file was run again.

    Raises:
        UsageError: The format is unknown, the model cannot be traced, or the file computes
            something else.
    """
    kind = SUFFIXES.get(out.suffix)
    if kind is None:
        raise UsageError(f"{out}: the name must end in one of {', '.join(SUFFIXES)}")
    task.model.eval()
    watched = _Watched(batch)
    with torch.no_grad():
        predict(task.model, watched if task.collate is None else task.collate(watched))  # type: ignore[arg-type]
    names = list(watched.seen)
    module = Predictor(task, predict, names).eval()
    columns = tuple(batch[name] for name in names)
    with torch.no_grad():
        expected = module(*columns)
    if not isinstance(expected, Tensor):
        raise TaskError("predict(model, batch) must return one tensor to be exported")
    try:
        rows = torch.export.Dim("records")
        program = torch.export.export(
            module, columns, dynamic_shapes=(tuple({0: rows} for _ in columns),)
        )
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"torch.export cannot trace this model: {first}") from error
    run = _write_onnx if kind == "onnx" else _write_torch_export
    scale = float(expected.abs().max()) or 1.0
    # Beside its place and under its own name: large ONNX models name a file of weights after it.
    with tempfile.TemporaryDirectory(prefix=".unchecked-", dir=out.absolute().parent) as scratch:
        again = run(program, columns, names, Path(scratch) / out.name)
        difference = float((again - expected).abs().max())
        if not difference <= _TOLERANCE * scale:
            raise UsageError(
                f"{kind} computes another result (off by {difference:.3g}): not written"
            )
        for file in Path(scratch).iterdir():
            file.replace(out.absolute().parent / file.name)
    return {"format": kind, "inputs": names, "difference": difference}


def _write_torch_export(
    program: Any, columns: tuple[Tensor, ...], _names: list[str], out: Path
) -> Tensor:
    torch.export.save(program, out)
    with torch.no_grad():
        again: Tensor = torch.export.load(out).module()(*columns)
    return again


def _write_onnx(program: Any, columns: tuple[Tensor, ...], names: list[str], out: Path) -> Tensor:
    try:
        import onnx  # noqa: PLC0415 - an extra
        import onnxscript  # noqa: F401, PLC0415 - torch's exporter needs it
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("ONNX needs more packages: pip install 'tidegate[onnx]'") from error
    written = torch.onnx.export(
        program, input_names=names, output_names=["prediction"], dynamo=True, verbose=False
    )
    if written is None:
        raise UsageError("torch gave no ONNX program for this model")
    written.save(out)
    model = onnx.load(out)
    inputs = {
        entry.name: values.numpy() for entry, values in zip(model.graph.input, columns, strict=True)
    }
    outputs: Any = ReferenceEvaluator(model).run(None, inputs)
    return torch.from_numpy(outputs[0])


def _put_weights(task: Task, model_file: Path) -> None:
    parameters = {name: p for name, p in task.model.named_parameters() if p.requires_grad}
    tensors = load_file(model_file)
    if tensors.keys() != parameters.keys():
        raise UsageError(f"{model_file} holds other tensors than the app's model()")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def _run(arguments: argparse.Namespace) -> dict[str, object]:
    job = JobFile.parse(arguments.job.read_bytes())
    if job.task is None or job.schema is None:
        raise UsageError("only models of a [task] whose job declares [[columns]] can be converted")
    bases = dict(entry.split("=", 1) for entry in arguments.base_models)
    sys.dont_write_bytecode = True
    folders = {name: Path(path) for name, path in bases.items()}
    task = load_task(arguments.app, job.task.file, job.task.seed, folders)
    _put_weights(task, arguments.model)
    rows = draw_rows(job.schema, _ROWS, torch.Generator().manual_seed(0))
    # Not one of the functions that sites call, so `Task` does not know it.
    predict = getattr(sys.modules[task.loss.__module__], "predict", _call)
    return convert(task, predict, read_batch(rows, job.schema), arguments.out)


def _call(model: nn.Module, batch: Batch) -> object:
    return model(batch)


def main() -> int:
    """Convert, and say what was written as JSON on stdout."""
    parser = argparse.ArgumentParser(prog="edge_node.tasks.model_formats")
    for name in ("app", "job", "model", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("base_models", nargs="*")
    arguments = parser.parse_args()
    try:
        sys.stdout.write(json.dumps(_run(arguments)) + "\n")
    except TidegateError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except Exception as error:  # noqa: BLE001 - the app may raise anything
        sys.stderr.write(f"{describe_fault(error, arguments.app)}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
