"""Read policy.toml. It fails closed: no file, no job; an unknown key is an error."""

import re
from dataclasses import asdict, fields
from pathlib import Path

from edge_node.config import SiteConfig
from edge_node.policy import BudgetRule, Policy, TrainerCeilings
from privacy.accounting.budget import MAX_EPSILON
from privacy.errors import UsageError
from privacy.leakage.model_lint import Detector
from privacy.secagg.rules import DEFAULT_MIN_HONEST, LEAST_HONEST
from tidegate.jobfile import MODES, NONE
from tidegate.manifest import MAX_SITES
from tidegate.toml_table import Span, Table

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_ALPHA = 1024
_MAX_FILE_BYTES = 1 << 20
_BUDGET_KEYS = ("epsilon", "delta_dp", "unit", "alpha", "max_rows_per_user", "user_column")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")
_KEYS = (
    "modes",
    "allow_no_dp",
    "allowed_apps",
    "declared_dp_apps",
    "datasets",
    "allow_statistics",
    "max_epsilon_per_job",
    "max_delta_dp",
    "min_noise_multiplier",
    "min_cohort",
    "min_pinned_peers",
    "min_honest",
    "small_cohort_consent",
    "allow_adjacent_cohorts",
    "require_sandbox",
    "require_leakage_audit",
    "leakage_audit_days",
    "trainer",
    "lint",
    "budgets",
)


def policy_of(config: SiteConfig) -> Policy:
    """Read a site's policy, and hold what site.toml gives a trainer against its ceilings.

    Raises:
        UsageError: The policy is wrong, or site.toml gives more than it allows.
    """
    policy = load_policy(config.policy_file)
    policy.trainer.check(asdict(config.trainer))
    return policy


def load_policy(path: Path) -> Policy:
    """Read policy.toml; a missing file gives the policy that refuses everything.

    Raises:
        UsageError: The file is there and wrong: an unknown key, or a value that protects nobody.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        message = f"this site has no policy file ({path.name}), so it refuses every job"
        return Policy(closed=message)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    top = Table.parse(raw, str(path), _KEYS, _MAX_FILE_BYTES)
    policy = Policy(
        modes=_texts(top, "modes"),
        allow_no_dp=top.flag("allow_no_dp", default=False),
        allowed_apps=_digests(top, "allowed_apps"),
        declared_dp_apps=_digests(top, "declared_dp_apps"),
        datasets=_texts(top, "datasets"),
        allow_statistics=top.flag("allow_statistics", default=False),
        max_epsilon_per_job=top.number("max_epsilon_per_job", Span(0, 100)),
        max_delta_dp=top.number("max_delta_dp", Span(0, 1, open_high=True)),
        min_noise_multiplier=top.number("min_noise_multiplier", Span(0, 1e6), 0.3),
        min_cohort=top.whole("min_cohort", Span(2, MAX_SITES)) if top.has("min_cohort") else None,
        min_pinned_peers=top.whole("min_pinned_peers", Span(0, MAX_SITES - 1), 0),
        min_honest=top.whole("min_honest", Span(LEAST_HONEST, MAX_SITES), DEFAULT_MIN_HONEST),
        small_cohort_consent=top.flag("small_cohort_consent", default=False),
        allow_adjacent_cohorts=top.flag("allow_adjacent_cohorts", default=False),
        require_sandbox=top.flag("require_sandbox", default=False),
        require_leakage_audit=top.flag("require_leakage_audit", default=False),
        leakage_audit_days=top.whole("leakage_audit_days", Span(1, 3650), 180),
        trainer=_ceilings(top),
        lint_allow=_lint_allow(top),
        budgets=_budgets(top),
    )
    _check(top, policy)
    return policy


def _ceilings(top: Table) -> TrainerCeilings:
    table = top.table("trainer", tuple(field.name for field in fields(TrainerCeilings)))

    def seconds(key: str) -> float | None:
        return table.number(key, Span(0, 1e6, open_low=True)) if table.has(key) else None

    def whole(key: str) -> int | None:
        return table.whole(key, Span(1, 1 << 24)) if table.has(key) else None

    return TrainerCeilings(
        memory_mib=whole("memory_mib"),
        time_limit_s=seconds("time_limit_s"),
        start_time_limit_s=seconds("start_time_limit_s"),
        threads=whole("threads"),
        processes=whole("processes"),
    )


def _lint_allow(top: Table) -> tuple[Detector, ...]:
    table = top.table("lint", ("allow",))
    words = _texts(table, "allow", [])
    if not set(words) <= set(Detector):
        raise table.bad("allow", f"must hold only {', '.join(map(repr, Detector))}")
    return tuple(map(Detector, words))


def _budgets(top: Table) -> tuple[BudgetRule, ...]:
    names = top.fields.get("budgets", {})
    if not isinstance(names, dict):
        raise UsageError(f"{top.where} budgets must be tables: write [budgets.DATASET_ID]")
    declared = top.table("budgets", tuple(names))
    return tuple(_budget(name, declared.table(name, _BUDGET_KEYS)) for name in names)


def _budget(name: str, table: Table) -> BudgetRule:
    by_user = table.choice("unit", ("record", "user"), "record") == "user"
    rows = "max_rows_per_user"
    rule = BudgetRule(
        dataset_id=name,
        epsilon=table.number("epsilon", Span(0, MAX_EPSILON, open_low=True)),
        delta_dp=table.number("delta_dp", Span(0, 1, open_low=True, open_high=True)),
        unit="user" if by_user else "record",
        alpha=table.whole("alpha", Span(2, _MAX_ALPHA)) if table.has("alpha") else None,
        max_rows_per_user=table.whole(rows, Span(1, 1 << 20)) if table.has(rows) else None,
        user_column=_user_column(table) if by_user or table.has("user_column") else None,
    )
    # What no order can carry is refused now, not at the first job.
    rule.budget(rule.alpha or _MAX_ALPHA, allow_no_dp=False)
    return rule


def _user_column(table: Table) -> str:
    return table.text("user_column", _COLUMN, "the name of the column that tells users apart")


def _texts(table: Table, key: str, default: list[str] | None = None) -> tuple[str, ...]:
    value = table.fields.get(key, default)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise table.bad(key, "must be a list of strings")
    return tuple(value)


def _digests(table: Table, key: str) -> frozenset[str]:
    matches = [_DIGEST.fullmatch(app) for app in _texts(table, key, [])]
    if not all(matches):
        raise table.bad(key, "must hold 'sha256:' and 64 lower-case hex digits each")
    return frozenset(match.group(1) for match in matches if match)


def _check(top: Table, policy: Policy) -> None:
    for mode in policy.modes:
        if mode not in MODES:
            raise top.bad("modes", f"must be among {', '.join(MODES)}")
    if NONE in policy.modes and not policy.allow_no_dp:
        raise top.bad(
            "modes",
            "lists 'none', which has no differential privacy, without allow_no_dp = true",
        )
    if policy.min_honest < DEFAULT_MIN_HONEST and not policy.small_cohort_consent:
        raise top.bad("min_honest", "must be 3 or more unless small_cohort_consent = true")
