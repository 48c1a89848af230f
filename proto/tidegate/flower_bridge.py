"""Touch what is private in Flower: the one module that does, for both ends.

Flower 1.42 makes messages only inside a task that it started itself; outside, its private
``TaskIdentity`` must be set first. ``Run``, which its public ``Grid`` names, is private too, as is
whether a ``ServerApp`` has a main function. The contract with the pinned version is in
``tests/unit/tidegate/test_flower_bridge.py``; that nobody else imports such a part, in
``tests/architecture``.
"""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["NODE_ID", "RUN_ID", "Run", "assume_task_identity", "is_legacy_app"]

RUN_ID = 1
NODE_ID = 1


def is_legacy_app(app: ClientApp) -> bool:
    """Tell whether an app is of Flower's earlier interface, made from a ``client_fn``."""
    return app._call is not None  # noqa: SLF001 - nothing public says so


def assume_task_identity() -> None:
    """Let this process make Flower messages; it serves one run, whose number means nothing."""
    TaskIdentity.run_id = RUN_ID
    TaskIdentity.node_id = NODE_ID
    TaskIdentity.task_id = 1


def has_main(app: ServerApp) -> bool:
    """Say whether a ServerApp has an ``@app.main()``; without one Flower runs its older API."""
    return app._main is not None  # noqa: SLF001 - public is only how to set it
