"""What is known of EC2, as samples of its families."""

from __future__ import annotations

from exporter.inventory.ec2 import Ec2Facts
from exporter.publish import families_archive as f
from exporter.publish.family import Family
from exporter.publish.surveyed import Samples


def readings(facts: Ec2Facts) -> list[tuple[Family, Samples]]:
    """The present state of the EC2 facts."""
    return [
        (f.EC2_FACTS, {(name,): float(known) for name, known in facts.known.items()}),
        (f.EC2_REQUESTS, {(name,): float(count) for name, count in facts.requests.items()}),
        (f.EC2_FAILURES, {key: float(count) for key, count in facts.failures.items()}),
        (f.EC2_SUCCESS, {(): facts.complete_at} if facts.complete_at is not None else {}),
    ]
