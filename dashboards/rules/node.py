"""Alerts of nodes, pairs and the fabric: what localisation and the judge have concluded, never a raw figure of one run."""

from __future__ import annotations

from dashboards.rules.model import Alert, Component, Group, Severity, duration, number
from dashboards.rules.promql import LAYERS, at, increase, upto
from dashboards.rules.recording import BROKEN, EXPLAINED, HEALTHY

NODE, FABRIC = Component.NODE, Component.FABRIC


def _broken() -> str:
    """The lowest broken layer only."""
    ways = []
    for layer in sorted(set(LAYERS.values())):
        mine = f'{BROKEN}{{probe=~"{at(layer)}"}}'
        ways.append(f'({mine} unless ignoring (probe) {BROKEN}{{probe=~"{upto(layer - 1)}"}})' if layer else mine)
    return "\nor\n".join(ways)


GROUP = Group("efapulse.nodes", (
    Alert(
        "EfaPulseFabricBroken", Severity.CRITICAL, FABRIC, "5m",
        _broken(),
        "The fabric is broken for {{ $labels.probe }}: most nodes, or a whole group of them, fail in the same way",
        "A leaf, node group, image or security group is bad, or at least the share fabric_share of all nodes. Alerts of single nodes and "
        "of "
        "canaries are held back meanwhile. Look at the findings first: efa-pulse status.",
        "Many nodes at once are one fault and not many suspects. A group finding is only made when disjoint pairs agree; the share catches "
        "what has no group in common. Only the lowest broken layer alerts, since it explains the others. 5m let a round in progress end.",
        labels={"layer": "fabric"}),
    Alert(
        "EfaPulseNodePreflightFailed", Severity.WARNING, NODE, "5m",
        f'{HEALTHY}{{probe="node"}} == 0\nunless {EXPLAINED}',
        "Node {{ $labels.node }} fails its EFA preflight",
        "Devices are missing, or a limit, library or setting that EFA needs is wrong on {{ $labels.node }}. No fabric probe there can be "
        "trusted until it is mended. The findings and their remedies: efa-pulse explain {{ $labels.node }}.",
        "The preflight needs no partner, so the node itself is at fault after a single run. It is the lowest layer: it mutes every other "
        "alert of this node."),
    Alert(
        "EfaPulseTransportFallback", Severity.WARNING, NODE, "2m",
        f"efapulse:node_fallback unless ignoring (transport) {EXPLAINED}",
        "{{ $labels.probe }} on node {{ $labels.node }} went over {{ $labels.transport }} where EFA is required",
        "The payload did not use EFA RDMA: KV transfers and collectives of {{ $labels.node }} are slow without any error of their own. "
        "tcp: sockets carried it; efa_no_rdma: EFA by send/receive emulation.",
        "Three witnesses judge the transport of every run, so one conclusive run is enough. It fires for the node that localisation "
        "blames; "
        "a partner that only shared the run stays out. It says more than EfaPulseNodeBad and mutes it for the same probe."),
    Alert(
        "EfaPulseNodeBad", Severity.WARNING, NODE, "5m",
        f'{HEALTHY}{{probe!="node"}} == 0\nunless {EXPLAINED}\nunless ignoring (transport) (max without (transport) '
        "(efapulse:node_fallback))",
        "Node {{ $labels.node }} is bad for {{ $labels.probe }}",
        "Runs of {{ $labels.probe }} with {{ $labels.node }} are too slow or fail, and two different good partners agree (or the node's "
        "own "
        "devices show it). Which evidence there is: efa-pulse explain {{ $labels.node }}.",
        "node_healthy is the word of localisation and not of one run: it becomes 0 when the node is named, so no long wait is needed. An "
        "unknown run does not change it, and it stays until contradicted. A failing lower layer, the fabric, or a fallback of the same "
        "probe explains it and mutes this."),
    Alert(
        "EfaPulseNodeSuspect", Severity.INFO, NODE, "1h",
        f"efapulse:node_suspicion:ratio >= @suspicion@\nunless ignoring (probe) (max without (probe) ({HEALTHY} == bool 0) == 1)\n"
        f"unless ignoring (node) (max without (probe) ({BROKEN}))",
        "Node {{ $labels.node }} has been a suspect for an hour (probability {{ $value | humanizePercentage }})",
        "A run with {{ $labels.node }} failed and could not be settled by re-pairing it with good partners so far: no partner is free, or "
        "the re-pairings could not measure. efa-pulse explain {{ $labels.node }} says which.",
        "A suspect is re-paired at once and usually settled within minutes; an hour means that something keeps the proof away. Below the "
        "default of 0.4 are nodes that chance explains better. A node that is already known to be bad has its own alert.",
        parameters={"suspicion": number("0.4", "probability from which a node counts as a suspect")}),
    Alert(
        "EfaPulsePairBad", Severity.WARNING, FABRIC, "30m",
        f"efapulse:pair_healthy == 0\nunless ignoring (peer) ({HEALTHY} == 0)\n"
        f'unless ignoring (node) label_replace({HEALTHY} == 0, "peer", "$1", "node", "(.*)")\n'
        f"unless ignoring (peer) {EXPLAINED}",
        "The path between {{ $labels.node }} and {{ $labels.peer }} is bad for {{ $labels.probe }}, and neither node is",
        "Both nodes pass with other partners, or there is no third node to tell them apart. A path, a switch port or a rule between these "
        "two is at fault.",
        "Both nodes of a failed pair are re-paired with others at once. 30m give that time: if a node is bad, its own alert takes over and "
        "mutes this; if the pair failed by chance, a newer pair replaces it."),
    Alert(
        "EfaPulseNicShareLow", Severity.WARNING, NODE, "1h",
        f'efapulse:nic_share:ratio < @share@\nunless ignoring (device, probe) ({HEALTHY}{{probe="node"}} == 0)',
        "NIC {{ $labels.device }} of node {{ $labels.node }} carries {{ $value | humanizePercentage }} of what its neighbours do",
        "One EFA device of {{ $labels.node }} moves far fewer bytes than an average one of the same node in the same run: link, cable, "
        "PCIe "
        "slot or a rail that the library does not use.",
        "Every NIC of a node gets the same share of a striped transfer, so half of the average is no noise. The figure is that of the last "
        "run; 1h means that at least one more run at the default interval of 30 min agrees.",
        parameters={"share": number("0.5", "share of an average NIC's bytes below which a NIC is weak")}),
    Alert(
        "EfaPulseNodeRegression", Severity.WARNING, NODE, "10m",
        f"efapulse:node_change == 1\nunless ignoring (kind) ({HEALTHY} == 0)\nunless ignoring (kind) {EXPLAINED}",
        "{{ $labels.probe }} on node {{ $labels.node }} has become slower than it was ({{ $labels.kind }})",
        "Still above every floor, but {{ $labels.node }} no longer reaches what it did itself: a step is a change at once (a driver, a "
        "cable, "
        "a NIC that trains lower), a drift is a slow one. efa-pulse baseline shows what was learned.",
        "Change detection has judged many runs already (a step after a few, a drift over days), so the wait is short. A node that is bad "
        "by its verdict has an alert of its own and mutes this one."),
    Alert(
        "EfaPulseFleetSlower", Severity.WARNING, FABRIC, "1h",
        "efapulse:baseline_level:ratio < @level@\nunless ignoring (operation, bytes, memory, kind, instance_type, stratum) "
        f"{BROKEN}",
        "{{ $labels.probe }} {{ $labels.operation }} on {{ $labels.instance_type }} ({{ $labels.stratum }}) is at "
        "{{ $value | humanizePercentage }} of its baseline on the whole fleet",
        "No single node stands out, all of them became slower: a new image, driver or library, a change of the network, or background "
        "load.",
        "The level is a median over nodes, so a few bad ones cannot move it. Day-to-day spread of healthy fleets is a few per cent and "
        "other "
        "leaves cost 5 to 10 %; 15 % is more than both. 1h holds two rounds of the KV probes.",
        parameters={"level": number("0.85", "share of the baseline below which the fleet counts as slower")}),
    Alert(
        "EfaPulseNodeNeverMeasured", Severity.WARNING, NODE, "10m",
        "time() - (min without (instance, pod) (efapulse_node_first_seen_timestamp_seconds)) > @age@\n"
        "unless ignoring (probe) (max without (instance, pod, probe) (efapulse_node_last_measured_timestamp_seconds))\n"
        "unless ignoring (gate) (max without (instance, pod, gate) (efapulse_node_gate_closed))",
        "Node {{ $labels.node }} has not been measured once since it joined {{ $value | humanizeDuration }} ago",
        "No run has ever left a figure of {{ $labels.node }}, and no gate says why. Silence is no health.",
        "An alert on a verdict cannot fire for a node that never had one. The default of 26 h is the promise of metrics.node_interval "
        "(24 h) "
        "and time for a round to end. A closed gate is shown as the reason and leaves the node out.",
        parameters={"age": number("93600", "seconds from which a node must have been measured: metrics.node_interval and a margin")}),
    Alert(
        "EfaPulseDataCorruption", Severity.CRITICAL, FABRIC, "0s",
        increase('efapulse_runs_total{probe!="canary", reason="wrong_content"}', "@window@", "outcome", "reason") + " > 0",
        "{{ $labels.probe }} moved bytes that arrived wrong",
        "A probe compared what arrived with what was sent and they differ. Answers that cross this path may be wrong without an error. "
        "Find the pair now: efa-pulse status, then drain both nodes.",
        "Wrong content is proven by a single run and nothing explains it away, so it pages at once and nothing mutes it. It stays for the "
        "window, so that one event is one page and not several.",
        parameters={"window": duration("6h", "how long one event keeps the alert firing")}),
))
