"""Rehearse a job before it is submitted: load its task as a site does, and try it on made-up data.

    python -m edge_node.tasks.rehearsal FOLDER JOB_TOML OUT [--base-model NAME=PATH]...

A program of its own, so that the command line does not load torch and an app's code never shares
the process that holds the operator's keys; it needs no key itself. It writes ``spec`` and ``model``
(the vector spec and the first model, as they are submitted) into OUT and a report as JSON to
standard output. Whatever is wrong is one line on standard error, with exit status 2. What the app
prints goes to standard error too. Nothing is written into FOLDER.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from edge_node.tasks.architecture import architecture_of
from edge_node.tasks.base_models import folder_digest
from edge_node.tasks.dry_run import blamed, dry_run
from edge_node.tasks.task import Task, TaskError, load_task, spec_of
from privacy.errors import TidegateError, UsageError
from privacy.spec import VectorSpec
from tidegate.jobfile import JobFile
from tidegate.jobfile import Task as TaskWork


def rehearse(
    folder: Path, job: JobFile, out: Path, base_models: Mapping[str, Path]
) -> dict[str, object]:
    """Build spec and first model, try the task, and say what was tried.

    Args:
        folder: The app.
        job: Its job file.
        out: Where ``spec`` and ``model`` are written.
        base_models: The folder of each base model, by name.

    Raises:
        TaskError: The task is not fit to submit; says where, why and the mend.
        UsageError: The job runs no task, or a base model is not the declared one.
    """
    work = job.task
    if work is None:
        raise UsageError("this job runs no task, so there is nothing to rehearse")
    folder = folder.resolve()
    given = _checked(work, base_models)
    with blamed(folder):
        task = load_task(folder, work.file, work.seed, given)
        spec = spec_of(task.model)
        architecture = _architecture(task, work)
        model = _first_model(task, spec)
    (out / "spec").write_bytes(spec.to_bytes())
    (out / "model").write_bytes(model)
    run = dry_run(task, spec, job, folder)
    return {
        "parameters": spec.length,
        "tensors": len(spec.tensors),
        "device": "cpu",
        "architecture": architecture,
        **asdict(run),
    }


def _checked(work: TaskWork, given: Mapping[str, Path]) -> dict[str, Path]:
    """See that the given base models are those that the job declares."""
    folders = {}
    for model in work.base_models:
        if model.name not in given:
            raise UsageError(
                f"the job names the base model {model.name!r}: give its folder with --base-model"
                f" {model.name}=PATH"
            )
        digest = folder_digest(given[model.name])
        if digest != model.sha256:
            raise UsageError(
                f"the base model {model.name!r} in {given[model.name]} has the digest {digest}, and"
                f" job.toml declares {model.sha256}: take the right folder, or set [[task."
                f'base_models]] sha256 = "{digest}"'
            )
        folders[model.name] = given[model.name].resolve()
    unknown = sorted(given.keys() - folders.keys())
    if unknown:
        raise UsageError(f"job.toml declares no base model {', '.join(unknown)}")
    return folders


def _architecture(task: Task, work: TaskWork) -> str:
    """Give the model's architecture, which must be the one that the job names, if it names one."""
    found = architecture_of(task.model)
    if work.architecture and work.architecture != found:
        raise TaskError(
            f"model() has the architecture {found}, and job.toml names {work.architecture}: sites"
            f' would refuse it; set [task] architecture = "{found}" if it was meant to change'
        )
    return found


def _first_model(task: Task, spec: VectorSpec) -> bytes:
    named = dict(task.model.named_parameters())
    arrays = {tensor.name: named[tensor.name].detach().cpu().numpy() for tensor in spec.tensors}
    flat_D = spec.flatten(arrays)
    if not np.isfinite(flat_D).all():
        raise TaskError("model() gives a first model with values that are not finite")
    return flat_D.tobytes()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m edge_node.tasks.rehearsal")
    parser.add_argument("folder", type=Path)
    parser.add_argument("job_toml", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--base-model", action="append", default=[], metavar="NAME=PATH")
    return parser.parse_args()


def main() -> int:
    """Run the program; gives the exit status."""
    arguments = _arguments()
    sys.dont_write_bytecode = True
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    report_fd = os.dup(1)
    os.dup2(2, 1)  # what the app prints is no report
    try:
        pairs = [text.partition("=") for text in arguments.base_model]
        base_models = {name: Path(path) for name, _, path in pairs}
        job = JobFile.parse(arguments.job_toml.read_bytes())
        report = rehearse(arguments.folder, job, arguments.out, base_models)
    except (TaskError, TidegateError) as error:
        sys.stdout.flush()
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return 2
    sys.stdout.flush()
    with os.fdopen(report_fd, "w", encoding="utf-8") as channel:
        json.dump(report, channel)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
