"""The service: it plans probes, launches them, judges what they found and publishes it."""
