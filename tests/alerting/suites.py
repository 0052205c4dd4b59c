"""The cases of all alerts."""

from __future__ import annotations

from alerting import canaries, monitors, nodes, pd
from alerting.case import Suite

SUITES: tuple[Suite, ...] = (*nodes.SUITES, *canaries.SUITES, *pd.SUITES, *monitors.SUITES)
