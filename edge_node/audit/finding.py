"""What a check of the DP audit found."""

from collections.abc import Callable
from dataclasses import dataclass

from edge_node.audit.setting import Setting


@dataclass(frozen=True)
class Finding:
    """One claim held against what was measured.

    Attributes:
        check: The name of the check, the same for all its findings.
        subject: What was looked at.
        claim: What must hold.
        measured: What was found.
        passed: Whether it held.
        false_alarm: Chance that a correct pipeline fails here; 0 where nothing is random.
    """

    check: str
    subject: str
    claim: str
    measured: str
    passed: bool
    false_alarm: float = 0.0


Check = Callable[[Setting], list[Finding]]
