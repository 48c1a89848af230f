"""A real site that takes part in any of a benchmark's jobs: several apps, data sets and modes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.cli.consortium import SitePlan

_SITE_TOML = """\
[site]
id = "{site}"
folder = "state"

[policy]
file = "policy.toml"

[store]
mirror_file = "generation"
boot_key_folder = "{boot_keys}"

[trainer]
threads = 1
time_limit_s = 600.0
start_time_limit_s = 300.0
memory_mib = 4096
"""

_DATASET_TOML = """
[datasets.{name}]
loader = "npz"
path = "{name}.npz"
"""

_POLICY_TOML = """\
modes = ["none", "record-local", "record-distributed"]
allow_no_dp = true
allow_adjacent_cohorts = true
datasets = [{datasets}]
allowed_apps = [{apps}]
max_epsilon_per_job = 10.0
max_delta_dp = 1e-5
"""

_BUDGET_TOML = """
[budgets.{name}]
epsilon = 30.0
delta_dp = 1e-5
"""


@dataclass(frozen=True)
class BenchSite(SitePlan):
    """A site's folder holds ``NAME.npz`` for each of its data sets.

    Attributes:
        datasets: Their names.
        apps: Digests of all apps that may run.
    """

    datasets: tuple[str, ...] = ()
    apps: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, folder: Path, datasets: Sequence[str], apps: Sequence[bytes]) -> "BenchSite":
        """Plan the site whose id is its folder's name."""
        return cls(
            site_id=folder.name,
            folder=folder,
            dataset=datasets[0],
            app_sha256=apps[0],
            epsilon=10.0,
            delta_dp=1e-5,
            alpha=0,
            datasets=tuple(datasets),
            apps=tuple(apps),
        )

    def write(self, boot_keys: Path) -> None:
        """Write site.toml and policy.toml beside the data."""
        site = _SITE_TOML.format(site=self.site_id, boot_keys=boot_keys / self.site_id)
        policy = _POLICY_TOML.format(
            datasets=", ".join(f'"{name}"' for name in self.datasets),
            apps=", ".join(f'"sha256:{app.hex()}"' for app in self.apps),
        )
        for name in self.datasets:
            site += _DATASET_TOML.format(name=name)
            policy += _BUDGET_TOML.format(name=name)
        (self.folder / "site.toml").write_text(site)
        (self.folder / "policy.toml").write_text(policy)
