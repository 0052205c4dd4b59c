"""What may be wrong, and how sure one can be: the hypotheses of localisation and their scores.

A pair that fails is explained by one of its nodes, a NIC of one, the path between them, a group both or one belong to, or chance. Scores
are posterior probabilities from the model below; the rules of naming (two good partners agree) are applied on top, so that a score alone
never names anybody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["node", "nic", "path", "pair", "group"]

P_NODE_BAD = 0.002
"""Chance that a node is bad before anything is known of it in this case."""
P_FAILS = 0.95
"""Chance that a pair with a bad node fails; the rest is a fault that shows only now and then."""
P_CHANCE = 0.002
"""Chance that a pair of two good nodes fails all the same."""
P_GROUP_BAD = 0.001
"""Chance that a group (a leaf, a node group, an image) is bad before anything is known."""


@dataclass(frozen=True)
class Finding:
    """What localisation has found, as it is published and kept.

    `subjects` are instance ids; for `nic` the id and the device, for `group` the attribute and its value (`leaf`, `nn-1`). `partners` are
    the nodes that agree, for a group the nodes that fail, for a pair the side that is cleared. Times are Unix seconds: `since` the start of
    the first run that failed, `found` when it was sure. `runs` counts the re-pairings it took. `explained_by` names a lower layer's finding
    that explains this one.
    """

    kind: Kind
    probe: str
    subjects: tuple[str, ...]
    reason: str
    score: float
    since: float
    found: float
    partners: tuple[str, ...] = ()
    says: str = ""
    runs: int = 0
    explained_by: str | None = None

    @property
    def key(self) -> str:
        """Tells findings of one probe apart."""
        return "/".join((self.kind, *self.subjects))

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "subjects": list(self.subjects), "partners": list(self.partners)}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Finding:
        """From JSON. Raises KeyError or TypeError when it is none."""
        return cls(**{**data, "subjects": tuple(data["subjects"]), "partners": tuple(data["partners"])})


def node_score(partners_bad: Iterable[float]) -> float:
    """Probability that a node is bad after runs with it failed; each number is the chance that that run's partner was the bad one.

    A failed run multiplies the odds by P(fails | this node bad) / P(fails | this node good).
    """
    odds = P_NODE_BAD / (1 - P_NODE_BAD)
    for chance in partners_bad:
        odds *= P_FAILS / (P_CHANCE + (1 - P_CHANCE) * P_FAILS * chance)
    return odds / (1 + odds)


def group_score(failed: int, passed: int) -> float:
    """Probability that a group is bad when so many disjoint pairs that touch it failed and passed, against as many single bad nodes.

    Each failed pair is explained by the group for nothing more, or by one more bad node at the price of its rarity.
    """
    log_odds = math.log(P_GROUP_BAD / (1 - P_GROUP_BAD))
    log_odds += failed * (math.log(P_FAILS) - math.log(2 * P_NODE_BAD * P_FAILS + P_CHANCE))
    log_odds += passed * (math.log(1 - P_FAILS) - math.log(1 - P_CHANCE))
    return 1 / (1 + math.exp(-max(min(log_odds, 500.0), -500.0)))


def path_score(failed: int, passed: int) -> float:
    """Probability that a path is bad when so many runs over it failed and passed, while both ends did well elsewhere."""
    odds = P_NODE_BAD / (1 - P_NODE_BAD)
    odds *= (P_FAILS / P_CHANCE) ** failed * ((1 - P_FAILS) / (1 - P_CHANCE)) ** passed
    return odds / (1 + odds)
