"""What the archive counts, as samples of its families."""

from __future__ import annotations

from exporter.archive.archive import Archive
from exporter.publish import families_archive as f
from exporter.publish.family import Family
from exporter.publish.surveyed import Samples


def readings(archive: Archive) -> list[tuple[Family, Samples]]:
    """The present state of the archive."""
    counts = archive.counts
    stores = ("local", "s3") if archive.settings.s3 is not None else ("local",)
    return [
        (f.ARCHIVE_PENDING, {(): float(archive.pending)}),
        (f.ARCHIVE_RESULTS, {(store,): float(counts.results[store]) for store in stores}),
        (f.ARCHIVE_WRITES, {(store,): float(counts.writes[store]) for store in stores}),
        (f.ARCHIVE_FAILURES, {key: float(count) for key, count in list(counts.failures.items())}),
        (f.ARCHIVE_DROPPED, {(): float(counts.dropped)}),
        (f.ARCHIVE_SUCCESS, {(store,): at for store, at in list(counts.success.items())}),
        (f.ARCHIVE_BYTES, {(): float(counts.size)}),
        (f.ARCHIVE_TROUBLE, {(store,): float(store in counts.trouble) for store in stores}),
    ]
