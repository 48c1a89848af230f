"""Submit an unchanged Flower app folder: rehearse it, and draft the job file that it lacks.

The app's code runs in a process of its own (``aggregator.server_app.rehearsal``), never beside the
operator's keys.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aggregator.cli.app_program import run_app_program
from aggregator.cli.strategy_scan import refuse_strategies
from aggregator.cli.toml_text import toml_text
from privacy.errors import UsageError
from tidegate import appbundle
from tidegate.flower_project import FILE as PROJECT_FILE
from tidegate.flower_project import FlowerProject, read_project
from tidegate.jobfile import NONE, SERVER_APP, SITE, STRATEGY, FlowerApp, JobFile
from tidegate.jobfile.job import MAX_ROUNDS

_HEADING = "# Drafted by `tidegate job submit` for an unchanged Flower app."
_ROUND_SETTINGS = ("num-server-rounds", "num-rounds", "num_rounds")
_REHEARSAL = "aggregator.server_app.rehearsal"
_METRICS_SHARE = 0.25
"""C_m of a drafted job as a share of its clipping norm."""


@dataclass(frozen=True)
class FlowerOptions:
    """What a drafted job file is to say; see the options of ``job submit``."""

    dataset: str = ""
    mode: str = ""
    clipping_norm: float = 0.0
    sites: int = 0
    rounds: int = 0
    strategy: str = ""
    evaluate_every: int = 0
    epsilon: float = 0.0
    delta_dp: float = 0.0
    metrics: tuple[str, ...] = ()
    evaluation_metrics: tuple[str, ...] = ()
    run_config: tuple[str, ...] = ()

    @property
    def given(self) -> bool:
        """Whether any of them is."""
        return self != FlowerOptions()


@dataclass(frozen=True)
class RehearsedApp:
    """What a rehearsal gave: see ``aggregator.server_app.rehearsal``."""

    vector_spec: bytes
    model: bytes
    report: Mapping[str, Any]


def is_flower_folder(folder: Path) -> bool:
    """Say whether a folder is a Flower app's."""
    try:
        read_project((folder / PROJECT_FILE).read_bytes())
    except (OSError, UsageError):
        return False
    return True


def rehearse_app(folder: Path, job_toml: bytes, app: bytes) -> RehearsedApp:
    """Check a Flower app and learn its first model, in a process of its own.

    Args:
        folder: The app.
        job_toml: Its job file.
        app: The bundle that is submitted.

    Raises:
        UsageError: It is not fit to submit: why, in which file and line, and what to do instead.
    """
    job = JobFile.parse(job_toml)
    if isinstance(job.work, FlowerApp) and job.work.driver == SERVER_APP:
        refuse_strategies(appbundle.read(app))
    with TemporaryDirectory(prefix="tidegate-") as scratch:
        out = Path(scratch)
        (out / "job.toml").write_bytes(job_toml)
        report = run_app_program(
            (_REHEARSAL, str(folder.absolute()), str(out / "job.toml"), str(out)),
            str(folder),
            "the app's main made no call meanwhile; it has no network at the aggregator either:"
            " does it wait for something?",
            {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
            out,  # what main writes to relative paths goes with it
        )
        spec, model = (out / "spec").read_bytes(), (out / "model").read_bytes()
    return RehearsedApp(spec, model, report)


def describe_rehearsal(report: Mapping[str, Any]) -> list[str]:
    """Say in lines what an app's main did in its rehearsal."""
    lines = [
        f"rehearsed main{' to its end' if report['complete'] else ''}: {report['trainings']}"
        f" trainings, {report['evaluations']} evaluations"
        + (f" by {report['strategy']}" if report["strategy"] else "")
    ]
    if report["skipped_evaluations"]:
        lines.append(
            f"{report['skipped_evaluations']} evaluations will not be made: the job declares no"
            " [[evaluation_metrics]]"
        )
    return lines


def draft_job(folder: Path, options: FlowerOptions) -> bytes:
    """Write the job file that an app folder lacks.

    Args:
        folder: The app.
        options: What it is to say.

    Raises:
        UsageError: An option is missing, or the app is not fit to submit.
    """
    project = read_project((folder / PROJECT_FILE).read_bytes())
    _check_options(options)
    settings = _settings(options.run_config, project)
    # A rehearsal with room for any number of rounds says how many main asks for.
    roomy = _text(folder, replace(options, rounds=MAX_ROUNDS), settings, {})
    report = rehearse_app(folder, roomy, appbundle.pack(folder)).report
    rounds = options.rounds or _rounds(report, {**project.settings, **settings}, options)
    return _text(folder, replace(options, rounds=rounds), settings, report)


def _check_options(options: FlowerOptions) -> None:
    wanted = {
        "--dataset": options.dataset,
        "--mode": options.mode,
        "--clipping-norm": options.clipping_norm,
        "--sites": options.sites,
    }
    if options.mode == SITE:
        wanted |= {"--epsilon": options.epsilon, "--delta-dp": options.delta_dp}
    missing = [name for name, value in wanted.items() if not value]
    if missing:
        raise UsageError(
            "the folder has no job.toml; one is drafted for a Flower app from options, of which"
            f" {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    if options.mode not in (NONE, SITE):
        raise UsageError(
            f"--mode {options.mode}: an unchanged app runs in mode {SITE} or {NONE}; write a"
            " job.toml for other modes"
        )
    if options.evaluate_every and not options.strategy:
        raise UsageError("--evaluate-every goes with --strategy: a ServerApp says it itself")


def _rounds(report: Mapping[str, Any], settings: Mapping[str, Any], options: FlowerOptions) -> int:
    if not options.strategy and report["complete"]:
        return int(report["trainings"] + report["evaluations"])
    named = [settings[name] for name in _ROUND_SETTINGS if isinstance(settings.get(name), int)]
    if options.strategy and named:
        return int(named[0])
    raise UsageError(
        "the app's main did not end within its rehearsal, so nobody knows how many rounds it asks"
        " for: state --rounds"
    )


def _text(
    folder: Path,
    options: FlowerOptions,
    settings: Mapping[str, Any],
    report: Mapping[str, Any],
) -> bytes:
    """Write the file; whoever reads it has to find every choice in it."""
    name = re.sub(r"[^A-Za-z0-9 ._-]", "-", folder.resolve().name).strip("-._ ")[:60] or "app"
    flower: dict[str, Any] = {"driver": STRATEGY if options.strategy else SERVER_APP}
    if options.evaluate_every:
        flower["evaluate_every"] = options.evaluate_every
    tables = {"run_config": settings}
    if options.strategy:
        tables |= {name: report.get(name, {}) for name in ("train_config", "evaluate_config")}
    for key, values in tables.items():
        plain = {k: v for k, v in values.items() if isinstance(v, str | int | float | bool)}
        flower |= {key: plain} if plain else {}
    document: dict[str, Any] = {
        "job": {"name": name, "dataset": options.dataset, "rounds": options.rounds},
        "flower": flower,
        "privacy": _privacy(options),
    }
    for key, metrics in (
        ("metrics", options.metrics),
        ("evaluation_metrics", options.evaluation_metrics),
    ):
        document |= {key: list(map(_metric, metrics))} if metrics else {}
    if options.strategy:
        document["strategy"] = {"name": options.strategy}
    document["round"] = {"target_sites": options.sites}
    return f"{_HEADING}\n{toml_text(document)}".encode()


def _privacy(options: FlowerOptions) -> dict[str, Any]:
    values: dict[str, Any] = {"mode": options.mode, "clipping_norm": options.clipping_norm}
    if options.mode == SITE:
        values |= {"epsilon": options.epsilon, "delta_dp": options.delta_dp}
    if options.metrics or options.evaluation_metrics:
        values["metrics_norm"] = _METRICS_SHARE * options.clipping_norm
    return values


def _metric(text: str) -> dict[str, Any]:
    name, _, upper = text.partition("=")
    try:
        return {"name": name, "kind": "mean", "upper": float(upper)}
    except ValueError:
        raise UsageError(
            f"--metric {text}: write NAME=UPPER, such as accuracy=1: values are clipped to 0..UPPER"
        ) from None


def _settings(texts: Sequence[str], project: FlowerProject) -> dict[str, Any]:
    """Read ``KEY=VALUE`` by the kind of value that the app has under the key."""
    found: dict[str, Any] = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not given:
            raise UsageError(f"--run-config {text}: write KEY=VALUE")
        project.run_config({name: value})
        kind = type(project.settings[name])
        try:
            found[name] = value == "true" if kind is bool else kind(value)
        except ValueError:
            raise UsageError(f"--run-config {text}: {name} is a {kind.__name__}") from None
        if kind is bool and value not in ("true", "false"):
            raise UsageError(f"--run-config {text}: write true or false")
    return found
