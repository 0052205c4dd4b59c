"""What the UCCL-EP probe must show on two GPUs of one host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES: dict[str, Callable[[Path], dict[str, Any]]] = {}
