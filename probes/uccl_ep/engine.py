"""Finding UCCL-EP: the installed `uccl`, and the DeepEP-compatible `Buffer` class that its wheel does not contain.

uccl before 0.1.1 does not work (pip on Python 3.11 silently takes 0.0.1); 0.1.1 needs Python 3.12. The Buffer class is in the wrapper
package `deep_ep` that UCCL's images install, or beside the upstream benches as `buffer.py`.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from probes.reasons import Reason

OLDEST = (0, 1, 1)
OLDEST_PYTHON = (3, 12)
USUAL_FOLDERS = ("/opt/uccl/ep/bench", "/uccl/ep/bench", "/workspace/uccl/ep/bench", "/root/uccl/ep/bench", "/usr/local/uccl/ep/bench")


class EngineError(Exception):
    """UCCL-EP cannot be used here. `reason` and the text say why and what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def version() -> str:
    """The installed version of uccl. Raises EngineError when it is missing or known not to work. Imports nothing."""
    try:
        installed = metadata.version("uccl")
    except metadata.PackageNotFoundError:
        raise EngineError(Reason.ENGINE_MISSING, "uccl is not installed here: pip install uccl==0.1.1, on Python 3.12 or newer") from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", installed.split("post")[0])[:3])
    if numbers < OLDEST:
        raise EngineError(Reason.ENGINE_INCOMPATIBLE, f"uccl {installed} does not work: 0.1.1 or newer is needed, and Python 3.12 for it")
    if sys.version_info < OLDEST_PYTHON:
        raise EngineError(Reason.ENGINE_INCOMPATIBLE, f"uccl {installed} needs Python 3.12 or newer, this is {sys.version.split()[0]}")
    return installed


def find_bench(script: str, folder: str | None) -> Path | None:
    """An upstream bench, in `folder` or in the usual ones of the images. None: not there."""
    places = (folder,) if folder is not None else USUAL_FOLDERS
    return next((Path(place) / script for place in places if (Path(place) / script).is_file()), None)


def load_buffer(folder: str | None) -> Any:
    """The Buffer class. Raises EngineError. Imports torch and the CUDA libraries, so only a lane may call it."""
    version()
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise EngineError(Reason.ENGINE_MISSING, f"torch does not import here: {error}") from None
    try:
        ep = importlib.import_module("uccl.ep")
    except (ImportError, OSError) as error:
        raise EngineError(Reason.ENGINE_INCOMPATIBLE, f"uccl.ep does not import here: {error}; it needs libcudart.so.12") from None
    try:
        wrapper = importlib.import_module("deep_ep")
        # DeepSeek's own package has the same name and knows nothing of UCCL.
        if getattr(wrapper, "Config", None) is ep.Config:
            return wrapper.Buffer
    except (ImportError, OSError):
        pass
    path = find_bench("buffer.py", folder)
    if path is None:
        where = folder or ", ".join(USUAL_FOLDERS)
        raise EngineError(Reason.ENGINE_MISSING, f"no Buffer class for uccl: neither its deep_ep wrapper nor buffer.py in {where}")
    sys.path.insert(0, str(path.parent))
    try:
        return importlib.import_module("buffer").Buffer
    except (ImportError, OSError, AttributeError) as error:
        raise EngineError(Reason.ENGINE_INCOMPATIBLE, f"{path} does not import here: {error}") from None
