"""The budget: what probes have cost each node of late, and whether one more run fits.

Each node has three accounts (bytes sent, GPU device-seconds, seconds in which payload moved) that refill evenly over a day and hold at most
one day's worth, so that a weekly run of a whole node can be saved up to. An account that a run overdraws (re-pairing of a suspect may, down
to one day's worth) closes its gate until it has refilled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exporter.config.planning import Budget
from exporter.inventory.model import Node
from exporter.plan.cost import ALL_GPUS, Cost
from exporter.plan.gates import Closed

DAY = 86400.0
BYTES, GPU, FABRIC = "bytes", "gpu", "fabric"
_GATES = {BYTES: "budget_bytes", GPU: "budget_gpu", FABRIC: "budget_fabric"}
_WHAT = {BYTES: "bytes sent by probes", GPU: "GPU device-seconds held by probes", FABRIC: "seconds in which probes moved payload"}


@dataclass
class Account:
    """What is spent and not yet refilled, at `at` (Unix seconds)."""

    spent: float = 0.0
    at: float = 0.0

    def level(self, now: float, per_day: float) -> float:
        """What is still spent at `now`, after refilling."""
        return max(0.0, self.spent - max(0.0, now - self.at) * per_day / DAY)

    def charge(self, amount: float, now: float, per_day: float) -> None:
        """Spend `amount` at `now`."""
        self.spent = self.level(now, per_day) + amount
        self.at = max(now, self.at)


@dataclass
class Books:
    """The accounts of every node by instance id, and of the fleet under the id of the empty text."""

    budget: Budget = field(default_factory=Budget)
    accounts: dict[str, dict[str, Account]] = field(default_factory=dict)

    def allowance(self, node: Node | None) -> dict[str, float]:
        """What each account of a node refills in a day."""
        gpus = node.gpu.allocatable if node is not None and node.gpu is not None and node.gpu.allocatable else ALL_GPUS
        return {BYTES: float(self.budget.node_bytes_per_day), GPU: self.budget.gpu_time * gpus * DAY, FABRIC: self.budget.fabric_time * DAY}

    def closed(self, node: Node, cost: Cost, now: float, *, urgent: bool = False) -> Closed | None:
        """Why one more run of `cost` does not fit on `node`, None when it does. An urgent run may overdraw by one day's worth.

        One run always fits into accounts that are full, however much it costs.
        """
        allowance = self.allowance(node)
        accounts = self.accounts.get(node.instance_id, {})
        for name, amount in _amounts(cost).items():
            account = accounts.get(name)
            if account is None or amount <= 0:
                continue
            spent = account.level(now, allowance[name])
            limit = allowance[name] * (2 if urgent else 1)
            if spent > 0 and spent + amount > limit:
                return Closed(_GATES[name], f"{_WHAT[name]}: {_show(name, spent)} of {_show(name, allowance[name])} a day are spent, "
                                            f"one run costs {_show(name, amount)}")
        if self.budget.fleet_bytes_per_day is not None and not urgent:
            fleet = self.accounts.get("", {}).get(BYTES)
            spent = fleet.level(now, self.budget.fleet_bytes_per_day) if fleet is not None else 0.0
            if spent > 0 and spent + cost.bytes > self.budget.fleet_bytes_per_day:
                return Closed(_GATES[BYTES], f"the fleet's {_show(BYTES, self.budget.fleet_bytes_per_day)} a day are spent")
        return None

    def charge(self, node: Node, cost: Cost, now: float) -> None:
        """Book one run on `node` at `now`, by its declared cost."""
        allowance = self.allowance(node)
        accounts = self.accounts.setdefault(node.instance_id, {})
        for name, amount in _amounts(cost).items():
            if amount > 0:
                accounts.setdefault(name, Account()).charge(amount, now, allowance[name])
        if self.budget.fleet_bytes_per_day is not None:
            fleet = self.accounts.setdefault("", {}).setdefault(BYTES, Account())
            fleet.charge(cost.bytes, now, self.budget.fleet_bytes_per_day)

    def settle(self, node: Node, declared: Cost, actual: Cost, now: float) -> None:
        """Give back (or take) the difference once it is known what a run really cost."""
        allowance = self.allowance(node)
        accounts = self.accounts.get(node.instance_id, {})
        real = _amounts(actual)
        for name, amount in _amounts(declared).items():
            if name in accounts:
                accounts[name].charge(real[name] - amount, now, allowance[name])
                accounts[name].spent = max(0.0, accounts[name].spent)

    def dump(self, instance_id: str) -> dict[str, Any]:
        """The accounts of one node as JSON."""
        return {name: [round(account.spent, 3), round(account.at, 3)] for name, account in self.accounts.get(instance_id, {}).items()}

    def load(self, instance_id: str, data: Mapping[str, Any]) -> None:
        """Take in what `dump` gave."""
        self.accounts[instance_id] = {str(name): Account(float(spent), float(at)) for name, (spent, at) in data.items()}

    def forget(self, instance_id: str) -> None:
        """Close the accounts of a node that left."""
        self.accounts.pop(instance_id, None)


def _amounts(cost: Cost) -> dict[str, float]:
    return {BYTES: float(cost.bytes), GPU: cost.gpu_seconds, FABRIC: cost.window}


def _show(name: str, amount: float) -> str:
    return f"{amount / 2**30:.3g} GiB" if name == BYTES else f"{amount:.3g} s"
