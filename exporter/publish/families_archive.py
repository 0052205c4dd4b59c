"""The metric families of the archive, of the EC2 facts and of node conditions. `families` takes them in; see there for the rules."""

from __future__ import annotations

from exporter.publish.family import PREFIX, Attribution, Cardinality, Family, Kind

COUNTER, GAUGE = Kind.COUNTER, Kind.GAUGE
SELF = Attribution.SELF
FIXED = Cardinality.FIXED
SECONDS = "seconds"

LABELS = {
    "call": "EC2 call: `DescribeInstances`, `DescribeInstanceTypes` or `DescribeInstanceTopology`",
    "fact": "EC2 fact: `instance_types`, `topology`, `placement_group` or `capacity_reservation`",
    "store": "where results are kept: `local` or `s3`",
    "trouble": "why a call of AWS failed: `no_credentials`, `denied`, `wrong_region`, `throttled`, `unreachable`, `missing` or `other`; "
               "of the archive also `disk`, `locked`, `full`; of conditions `denied`, `conflict`, `breaker`, `unreachable` or `other`",
}
"""What the labels of these families mean."""

# archive

ARCHIVE_PENDING = Family(
    PREFIX + "archive_pending_results", GAUGE,
    "Results taken in that the archive does not hold yet: with S3 those not uploaded, else those not on disk.", (), SELF, FIXED)
ARCHIVE_RESULTS = Family(
    PREFIX + "archive_results_total", COUNTER, "Results that the archive holds, each counted once.", ("store",), SELF, FIXED)
ARCHIVE_WRITES = Family(
    PREFIX + "archive_writes_total", COUNTER, "Writes that worked: appends to the local file, uploads of segments to S3.", ("store",),
    SELF, FIXED)
ARCHIVE_FAILURES = Family(
    PREFIX + "archive_write_failures_total", COUNTER, "Writes that failed, and are tried again.", ("store", "trouble"), SELF, FIXED)
ARCHIVE_DROPPED = Family(
    PREFIX + "archive_dropped_results_total", COUNTER, "Results that the archive could not take because queue or spool were full.", (),
    SELF, FIXED)
ARCHIVE_SUCCESS = Family(
    PREFIX + "archive_last_success_timestamp_seconds", GAUGE, "When a write to the store last worked.", ("store",), SELF, FIXED,
    unit=SECONDS)
ARCHIVE_BYTES = Family(
    PREFIX + "archive_local_bytes", GAUGE, "Bytes of the local archive, or of the spool before S3.", (), SELF, FIXED, unit="bytes")
ARCHIVE_TROUBLE = Family(
    PREFIX + "archive_trouble", GAUGE, "Whether the store cannot be written now; the log and the status page say why.", ("store",), SELF,
    FIXED)

# EC2

EC2_FACTS = Family(
    PREFIX + "ec2_facts_known", GAUGE, "Whether this fact is known of the nodes; 0: what depends on it is lost, see the log.", ("fact",),
    SELF, FIXED)
EC2_REQUESTS = Family(PREFIX + "ec2_requests_total", COUNTER, "Calls of the EC2 API.", ("call",), SELF, FIXED)
EC2_FAILURES = Family(
    PREFIX + "ec2_request_failures_total", COUNTER, "Calls of the EC2 API that failed, and are tried again later.", ("call", "trouble"),
    SELF, FIXED)
EC2_SUCCESS = Family(
    PREFIX + "ec2_last_success_timestamp_seconds", GAUGE, "When everything that is asked of EC2 was last answered.", (), SELF, FIXED,
    unit=SECONDS)

# node conditions

CONDITION_FLAGGED = Family(
    PREFIX + "node_conditions_flagged", GAUGE, "Nodes whose condition `EfaFabricHealthy` is False by our word now.", (), SELF, FIXED)
CONDITION_BREAKER = Family(
    PREFIX + "node_conditions_breaker_open", GAUGE,
    "Whether too large a share of the nodes was flagged: no further node is, until a person or the window closes the breaker.", (), SELF,
    FIXED)
CONDITION_HELD = Family(
    PREFIX + "node_conditions_held_back", GAUGE, "Nodes that would be flagged if the breaker were closed.", (), SELF, FIXED)
CONDITION_WRITES = Family(
    PREFIX + "node_condition_writes_total", COUNTER, "Changes of node conditions and Events that were written.", ("kind",), SELF, FIXED)
CONDITION_FAILURES = Family(
    PREFIX + "node_condition_failures_total", COUNTER, "Changes of node conditions and Events that failed.", ("kind", "trouble"), SELF,
    FIXED)

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
"""In the order of declaration."""
