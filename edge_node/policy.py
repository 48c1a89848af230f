"""Judge job offers by the site's own rules: the administrator's right to refuse.

Every permission is off until the policy file grants it (`policy_file.py`), and the aggregator
cannot change a word of it. What the budget still allows is the ledger's business; what one cohort
must look like, SA-1's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from privacy.accounting.budget import Budget
from privacy.accounting.events import Unit
from privacy.errors import PeerError, Reason, UsageError
from privacy.leakage.model_lint import Detector
from privacy.secagg.rules import DEFAULT_MIN_HONEST, CohortPolicy
from tidegate.jobfile import NONE
from tidegate.manifest import Manifest


@dataclass(frozen=True)
class BudgetRule:
    """A privacy budget as the administrator declares it for one data-set id.

    ``alpha`` is the one Renyi order; None lets the first accepted job's public plan choose it,
    before the first charge (privacy.md, "Filter"). Once created, a budget is never changed.
    ``user_column`` is what tells apart the users whom a budget of that unit protects, and
    ``max_rows_per_user`` the most rows that one of them has.
    """

    dataset_id: str
    epsilon: float
    delta_dp: float
    unit: Unit = "record"
    alpha: int | None = None
    max_rows_per_user: int | None = None
    user_column: str | None = None

    def budget(self, alpha: int, *, allow_no_dp: bool) -> Budget:
        """Give the ledger's budget at an order."""
        return Budget(
            dataset_id=self.dataset_id,
            unit=self.unit,
            epsilon=self.epsilon,
            delta_dp=self.delta_dp,
            alpha=alpha,
            max_rows_per_user=self.max_rows_per_user,
            allow_no_dp=allow_no_dp,
            user_column=self.user_column,
        )


@dataclass(frozen=True)
class TrainerCeilings:
    """The most that ``[trainer]`` of site.toml may give a job's app; None leaves it open."""

    memory_mib: int | None = None
    time_limit_s: float | None = None
    start_time_limit_s: float | None = None
    threads: int | None = None
    processes: int | None = None

    def check(self, settings: Mapping[str, Any]) -> None:
        """See that no setting is above its ceiling.

        Args:
            settings: Those of site.toml, by name.

        Raises:
            UsageError: One is; the sentence names it and both numbers.
        """
        for name, ceiling in asdict(self).items():
            # Written so that a NaN breaks the rule.
            if ceiling is not None and not settings[name] <= ceiling:
                raise UsageError(
                    f"site.toml: [trainer] {name} = {settings[name]:g} is above the ceiling of"
                    f" policy.toml, [trainer] {name} = {ceiling:g}; lower the one or raise the"
                    " other"
                )


@dataclass(frozen=True)
class Policy:
    """What a site's administrator allows.

    Attributes:
        closed: Why everything is refused; empty where a policy was read.
        modes: Privacy modes that jobs may ask for.
        allow_no_dp: Explicit consent to mode ``none``, whose epsilon is infinite.
        allowed_apps: SHA-256 (hex) of app bundles that were reviewed; DP modes need it, and so does
            ``require_leakage_audit``, as code that nobody reviewed can write its own PASS.
        declared_dp_apps: SHA-256 (hex) of app bundles whose own clip and noise were reviewed too:
            only they may declare record privacy that Tidegate does not enforce.
        datasets: Names of data sets that jobs may use.
        allow_statistics: Lets jobs publish statistics of columns, another kind of release than a
            model.
        max_epsilon_per_job: Highest epsilon that one job may plan for.
        max_delta_dp: Highest delta_dp of a job.
        min_noise_multiplier: Least noise multiplier z of a plan.
        min_cohort: The site's own floor for a cohort; None takes the manifest's N_min.
        min_pinned_peers: Other members of a cohort that must be pinned by the manifest.
        min_honest: N_min - c must reach it.
        small_cohort_consent: Accepts a min_honest of 2.
        allow_adjacent_cohorts: Accepts, in mode ``none``, cohorts that differ by up to c + 2 sites.
        require_sandbox: Refuses jobs when the machine gives the trainer no namespaces.
        trainer: Ceilings to what site.toml may give a trainer.
        require_leakage_audit: Refuses jobs whose sending no leakage audit with a PASS was run on.
        leakage_audit_days: How long such an audit counts.
        lint_allow: What the lint may find in a model version that is trained from all the same.
        budgets: By data-set id.
    """

    closed: str = ""
    modes: tuple[str, ...] = ()
    allow_no_dp: bool = False
    allowed_apps: frozenset[str] = frozenset()
    declared_dp_apps: frozenset[str] = frozenset()
    datasets: tuple[str, ...] = ()
    allow_statistics: bool = False
    max_epsilon_per_job: float = 0.0
    max_delta_dp: float = 0.0
    min_noise_multiplier: float = 0.3
    min_cohort: int | None = None
    min_pinned_peers: int = 0
    min_honest: int = DEFAULT_MIN_HONEST
    small_cohort_consent: bool = False
    allow_adjacent_cohorts: bool = False
    require_sandbox: bool = False
    trainer: TrainerCeilings = TrainerCeilings()
    require_leakage_audit: bool = False
    leakage_audit_days: int = 180
    lint_allow: tuple[Detector, ...] = ()
    budgets: tuple[BudgetRule, ...] = ()

    def budget_rule(self, dataset_id: str) -> BudgetRule | None:
        """Give the budget declared for a data-set id."""
        return next((rule for rule in self.budgets if rule.dataset_id == dataset_id), None)


@dataclass(frozen=True)
class JobFacts:
    """What an offer asks for, as far as policy goes; numbers are those of the checked plan.

    Attributes:
        epsilon: Planned for the whole job; infinity in mode ``none``.
        noise_multiplier: z of the plan; 0 in mode ``none``.
        app_sha256: Digest of the bundle, hex.
        dataset_known: The site declares a data set of this name.
        sandboxed: The trainer's namespaces are in force.
        runs_app: Code of the app runs; else there is none to review.
        is_statistics: The sums that are published describe columns.
        declares_dp: The app's own code adds the noise.
    """

    mode: str
    dataset: str
    dataset_known: bool
    app_sha256: str
    epsilon: float
    delta_dp: float
    noise_multiplier: float
    sandboxed: bool
    runs_app: bool = True
    is_statistics: bool = False
    declares_dp: bool = False


APP_DIGEST = "a digest is of every .py and .toml file in the app's folder, job.toml too"
_WHY_REVIEWED = (
    "require_leakage_audit takes no unreviewed app's PASS: its code runs beside the attacks"
)


def judge(policy: Policy, facts: JobFacts) -> None:
    """Let a job pass, or refuse it by naming the rule that it breaks.

    Raises:
        PeerError: POLICY; the sentence names the rule and both numbers.
    """
    if policy.closed:
        raise PeerError(Reason.POLICY, policy.closed)
    rules = [
        (
            facts.mode in policy.modes,
            f"modes: mode {facts.mode!r} is not among {list(policy.modes)}",
        ),
        (
            facts.dataset in policy.datasets,
            f"datasets: data set {facts.dataset!r} is not among {list(policy.datasets)}",
        ),
        (
            facts.dataset_known,
            f"datasets: {facts.dataset!r} is allowed, but site.toml declares no such data set",
        ),
        (
            facts.sandboxed or not policy.require_sandbox,
            "require_sandbox: this machine lacks a protection that the trainer needs",
        ),
        (
            _is_reviewed(policy, facts) or not policy.require_leakage_audit,
            f"allowed_apps: no review of app sha256:{facts.app_sha256}; {_WHY_REVIEWED}",
        ),
        (
            policy.allow_statistics or not facts.is_statistics,
            "allow_statistics: statistics of columns are published only where it is true",
        ),
        *(_plain_rules(policy) if facts.mode == NONE else _private_rules(policy, facts)),
    ]
    for holds, message in rules:
        if not holds:
            raise PeerError(Reason.POLICY, f"the site's policy refuses this job by rule {message}")


def _is_reviewed(policy: Policy, facts: JobFacts) -> bool:
    return facts.app_sha256 in policy.allowed_apps or not facts.runs_app


def _plain_rules(policy: Policy) -> list[tuple[bool, str]]:
    message = "allow_no_dp: mode 'none' has no differential privacy and needs the site's consent"
    return [(policy.allow_no_dp, message)]


def _private_rules(policy: Policy, facts: JobFacts) -> list[tuple[bool, str]]:
    floor = policy.min_noise_multiplier
    # Comparisons are written so that a NaN breaks the rule.
    return [
        (
            _is_reviewed(policy, facts),
            f"allowed_apps: app sha256:{facts.app_sha256} is no reviewed app; {APP_DIGEST}",
        ),
        (
            facts.app_sha256 in policy.declared_dp_apps or not facts.declares_dp,
            f"declared_dp_apps: app sha256:{facts.app_sha256} has no review of its own noise",
        ),
        (
            facts.epsilon <= policy.max_epsilon_per_job,
            f"max_epsilon_per_job: {facts.epsilon:.6g} is above {policy.max_epsilon_per_job:g}",
        ),
        (
            facts.delta_dp <= policy.max_delta_dp,
            f"max_delta_dp: {facts.delta_dp:g} is above {policy.max_delta_dp:g}",
        ),
        (
            facts.noise_multiplier >= floor,
            f"min_noise_multiplier: {facts.noise_multiplier:.4g} is below {floor:g}",
        ),
    ]


def cohort_policy(
    policy: Policy,
    manifest: Manifest,
    mode: str,
    previous_survivors: frozenset[bytes] | None = None,
) -> CohortPolicy:
    """Give SA-1 the rules for one attempt: the sealed manifest's and the site's own.

    Args:
        policy: The site's policy.
        manifest: As pinned.
        mode: The job's privacy mode.
        previous_survivors: Who was in the job's last sum, for the rule on adjacent cohorts.

    Raises:
        UsageError: The policy protects nobody.
    """
    adjacent = None if mode != NONE or policy.allow_adjacent_cohorts else previous_survivors
    return CohortPolicy(
        colluders=manifest.colluders,
        min_survivors=manifest.min_survivors,
        dropout_percent=manifest.dropout_percent,
        min_cohort=policy.min_cohort,
        min_pinned_peers=policy.min_pinned_peers,
        min_honest=policy.min_honest,
        small_cohort_consent=policy.small_cohort_consent,
        previous_survivors=adjacent,
    )


def manifest_warnings(policy: Policy, manifest: Manifest) -> list[str]:
    """Say what of the policy will stop rounds under this manifest."""
    warnings = []
    if policy.min_cohort is not None and policy.min_cohort > manifest.min_survivors:
        warnings.append(
            f"min_cohort {policy.min_cohort} is above the manifest's N_min"
            f" {manifest.min_survivors}: a single drop-out may stop every round"
        )
    honest = manifest.min_survivors - manifest.colluders
    if honest < policy.min_honest:
        warnings.append(
            f"the manifest guarantees {honest} honest sites in a sum, this site asks for"
            f" {policy.min_honest}: every attempt will be refused; min_honest = 2 needs"
            " small_cohort_consent = true"
        )
    return warnings
