"""Families of baselines: how a node stands to what it usually reaches, to its peers and to its hardware, and what has changed.

Of each probe one figure is compared, the one whose bandwidth is shown first, so that a node has at most three ratios a probe.
"""

from __future__ import annotations

from exporter.publish.family import PREFIX, Attribution, Cardinality, Family, Kind

GAUGE, NODE, FLEET, SELF = Kind.GAUGE, Attribution.NODE, Attribution.FLEET, Attribution.SELF
FIXED, PER_NODE = Cardinality.FIXED, Cardinality.PER_NODE
FIGURE = ("probe", "operation", "bytes", "memory", "kind")
NORM = (*FIGURE, "instance_type", "stratum")

TO_BASELINE = Family(
    PREFIX + "node_to_baseline_ratio", GAUGE,
    "Bandwidth of the node's main figure over the learned baseline of its kind of node, distance and software: the best of the last pairs. "
    "Absent until that is learned.",
    ("node", *FIGURE), NODE, PER_NODE, drop=88)
TO_PEERS = Family(
    PREFIX + "node_to_peers_ratio", GAUGE,
    "The same bandwidth over the median of the nodes that were measured alike in the last round. Absent with fewer than 4 of them.",
    ("node", *FIGURE), NODE, PER_NODE, drop=87)
TO_CEILING = Family(
    PREFIX + "node_to_ceiling_ratio", GAUGE,
    "The same bandwidth over what the EFA devices that the run had could carry at their line rate. Absent for unlisted instance types.",
    ("node", *FIGURE), NODE, PER_NODE, drop=12)
CHANGE = Family(
    PREFIX + "node_change", GAUGE,
    "Whether the node has become slower than it was itself: 1 while that stands, 0 for `metrics.node_interval` after it is over. "
    "Absent: never, or not yet learned.",
    ("node", "probe", "kind"), NODE, PER_NODE, drop=205)

NODES = Family(
    PREFIX + "baseline_nodes", GAUGE, "Nodes by how far their baseline is learned; `changed` are those with a change that stands.",
    ("probe", "state"), SELF, FIXED)
SAMPLES = Family(
    PREFIX + "baseline_samples", GAUGE, "Runs that taught a baseline, faded with their age; below `baselines.samples` it is not used.",
    NORM, SELF, FIXED)
LEARNED_TIME = Family(
    PREFIX + "baseline_last_learned_timestamp_seconds", GAUGE, "End of the last run that taught a baseline.", NORM, SELF, FIXED,
    unit="seconds")
CENTRE = Family(
    PREFIX + "baseline_bandwidth_bytes_per_second", GAUGE, "What a healthy pair of this kind reaches with its present software: a median.",
    NORM, FLEET, FIXED, unit="bytes_per_second")
SPREAD = Family(
    PREFIX + "baseline_spread_ratio", GAUGE, "Robust standard deviation of that, as a share of it.", NORM, FLEET, FIXED)
LEVEL = Family(
    PREFIX + "baseline_level_ratio", GAUGE,
    "Median of what all nodes of this kind reached last over the baseline: below 1 the fleet as a whole became slower, not one node.",
    NORM, FLEET, FIXED)
UPGRADE = Family(
    PREFIX + "baseline_upgrade_ratio", GAUGE,
    "The baseline with the present software over the frozen one of the software before. Absent without an upgrade.",
    NORM, FLEET, FIXED)

FAMILIES = (TO_BASELINE, TO_PEERS, TO_CEILING, CHANGE, NODES, SAMPLES, LEARNED_TIME, CENTRE, SPREAD, LEVEL, UPGRADE)
"""In the order of the page."""

RATIOS = {"baseline": TO_BASELINE, "peers": TO_PEERS, "ceiling": TO_CEILING}
"""The ratios of a node, by what they are to."""
STATES = ("learning", "learned", "changed")
"""How far the baseline of a node is."""
CHANGES = ("step", "drift")
"""Kinds of change."""
