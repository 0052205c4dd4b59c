"""What the service knows right now, and why: for `status`, `explain` and their pages. Fed by the control loop, read by everybody."""

from exporter.status.board import Looked, Snapshot, StatusBoard
from exporter.status.document import status
from exporter.status.explain import UnknownSubject, explain

__all__ = ["Looked", "Snapshot", "StatusBoard", "UnknownSubject", "explain", "status"]
