"""Read what a site's settings say about each of its trainers."""

from edge_node.config import SiteConfig
from edge_node.trainer.trainer import HealthRules, TrainerConfinement, TrainerLimits
from tidegate.confine.sandbox import SandboxMode


def trainer_limits(config: SiteConfig) -> TrainerLimits:
    """Give what the site allows a trainer to use."""
    settings = config.trainer
    return TrainerLimits(
        start_timeout_s=settings.start_time_limit_s,
        request_timeout_s=settings.time_limit_s,
        memory_mib=settings.memory_mib,
        threads=settings.threads,
        device=settings.device,
        precision=settings.precision,
        processes=settings.processes,
        parallel=settings.parallel,
        health=HealthRules(max_restarts=settings.max_restarts, leak_share=settings.leak_share),
    )


def trainer_confinement(config: SiteConfig) -> TrainerConfinement:
    """Give how the site keeps a trainer apart."""
    return TrainerConfinement(mode=SandboxMode(config.trainer.sandbox), hidden=(config.folder,))
