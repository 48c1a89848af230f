"""Read what a job does: one of ``[task]``, ``[flower]``, ``[trees]``, ``[statistics]``.

``[evaluation]`` stands beside ``[task]``. A job file without any of them runs ``task.py``.
"""

import re
from typing import Any

from privacy.errors import UsageError
from tidegate.jobfile.trees_table import read_trees
from tidegate.jobfile.work_kinds import (
    SERVER_APP,
    STRATEGY,
    BaseModel,
    Evaluation,
    FlowerApp,
    Setting,
    Statistics,
    Task,
    Work,
)
from tidegate.schema import Schema
from tidegate.toml_table import Span, Table

WORK_TABLES = ("task", "flower", "trees", "statistics", "evaluation")

_TASK_FILE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_-]*/)*[A-Za-z_][A-Za-z0-9_]*\.py")
_TASK_RULE = "a relative path to a .py file of the app, such as 'task.py'"
_BASE_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_BASE_MODEL_RULE = "1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_OR_DIGEST = re.compile(r"([0-9a-f]{64})?")
_ANY = re.compile(r".{0,256}", re.DOTALL)
_MAX_SETTINGS = 256
_POSITIVE = Span(0, 1e9, open_low=True)
_DEFAULT_FILE = "task.py"
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION_RULE = "a function of the app as 'package.module:function'"
_STRATEGY_ONLY = ("evaluate_every", "train_config", "evaluate_config", "model")
_FLOWER_KEYS = ("driver", "run_config", "single_reply", *_STRATEGY_ONLY)


def read_work(top: Table, schema: Schema | None) -> Work:
    """Read the one table that says what the job does.

    Raises:
        UsageError: There are two of them, or one is wrong.
    """
    given = [name for name in WORK_TABLES if top.has(name)]
    apart = [name for name in given if name not in ("task", "evaluation")]
    if len(apart) > 1 or (apart and len(given) > 1):
        raise UsageError(
            f"{top.where} has {', '.join(f'[{name}]' for name in given)}: a job does one thing; "
            "keep one of them"
        )
    if top.has("flower"):
        return _read_flower(top)
    if top.has("trees"):
        return read_trees(top, schema)
    if top.has("statistics"):
        return _read_statistics(top, schema)
    task = _read_task(top)
    return _read_evaluation(top, task) if top.has("evaluation") else task


def _read_task(top: Table) -> Task:
    keys = ("file", "seed", "physical_batch", "architecture", "base_models")
    task = top.table("task", keys)
    models = []
    for table in task.tables("base_models", ("name", "sha256"), most=8):
        name = table.text("name", _BASE_MODEL, _BASE_MODEL_RULE)
        models.append(BaseModel(name, table.text("sha256", _DIGEST, "64 hexadecimal digits")))
    return Task(
        file=task.text("file", _TASK_FILE, _TASK_RULE, _DEFAULT_FILE),
        seed=task.whole("seed", Span(0, 2**53), 0),
        physical_batch=task.whole("physical_batch", Span(1, 65_536), 64),
        base_models=tuple(models),
        architecture=task.text("architecture", _NO_OR_DIGEST, "64 hexadecimal digits", ""),
    )


def _read_flower(top: Table) -> FlowerApp:
    table = top.table("flower", _FLOWER_KEYS)
    driver = table.choice("driver", (STRATEGY, SERVER_APP), STRATEGY)
    alien = _STRATEGY_ONLY if driver == SERVER_APP else ("single_reply",)
    for key in alien:
        if table.has(key):
            whose = "says it" if driver == SERVER_APP else "is not run"
            raise table.bad(key, f"must be absent for driver = {driver!r}: the ServerApp {whose}")
    return FlowerApp(
        driver=driver,
        evaluate_every=table.whole("evaluate_every", Span(0, 1_000_000), 0),
        run_config=_read_settings(table, "run_config"),
        model=table.text("model", _FUNCTION, _FUNCTION_RULE) if table.has("model") else "",
        train_config=_read_settings(table, "train_config"),
        evaluate_config=_read_settings(table, "evaluate_config"),
        single_reply=table.flag("single_reply", default=False),
    )


def _read_settings(table: Table, key: str) -> dict[str, Setting]:
    settings: Any = table.fields.get(key, {})
    if not isinstance(settings, dict) or len(settings) > _MAX_SETTINGS:
        raise table.bad(key, f"must be a table of at most {_MAX_SETTINGS} settings")
    for name, value in settings.items():
        if not isinstance(value, str | int | float | bool) or not _ANY.fullmatch(str(value)):
            raise table.bad(key, f"holds {name!r}, which must be a short text or a number")
    return settings


def _read_statistics(top: Table, schema: Schema | None) -> Statistics:
    table = top.table("statistics", ("bins",))
    if schema is None:
        raise UsageError(f"{table.where} needs [[columns]]: what to describe, with public bounds")
    for column in schema.columns:
        if column.shape or not column.is_bounded:
            raise UsageError(
                f"{table.where} column {column.name!r} needs public bounds (low and high, or"
                " levels) and a single number a record"
            )
    return Statistics(table.whole("bins", Span(2, 4096), 64))


def _read_evaluation(top: Table, task: Task) -> Evaluation:
    table = top.table("evaluation", ("of_job", "version"))
    of_job = table.text("of_job", re.compile(r"[A-Za-z0-9_-]{0,64}"), "a job's id", "")
    return Evaluation(task, of_job, table.whole("version", Span(0, 2**31), 0))
