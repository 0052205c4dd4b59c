"""aiperf, a widely used load generator for LLM endpoints, in an environment of its own.

It needs no model hub: its tokenizer is a byte-level one made here, and token counts are the server's. Its TTFT counts from before it hands
the request to its HTTP library, by its user-space clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "aiperf"
VERSION = "0.13.0"
NAME = f"{PACKAGE} {VERSION}"
FOLDER = Path(__file__).resolve().parents[2] / "build" / f"bench-{PACKAGE}-{VERSION}"
INSTALL_SECONDS = 300.0
WARM_UP = 3

_TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)} | {"<s>": 256}, merges=[]))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="<s>").save_pretrained(sys.argv[1])
"""


@dataclass(frozen=True)
class Record:
    """One request as the peer timed it, seconds."""

    ttft: float
    tpot: float
    gaps: list[float]


@dataclass(frozen=True)
class Peer:
    """The installed tool."""

    command: Path
    tokenizer: Path

    def measure(self, url: str, ca_file: Path | None, requests: int, tokens: int, seconds: float) -> list[Record]:
        """`requests` one after the other, after a warm-up. Raises RuntimeError when it gives no records."""
        with tempfile.TemporaryDirectory(prefix="efa-pulse-aiperf-") as folder:
            command = [str(self.command), "profile", "--model", "simulated-pd", "--url", url, "--endpoint-type", "chat", "--streaming",
                       "--tokenizer", str(self.tokenizer), "--use-server-token-count", "--concurrency", "1",
                       "--request-count", str(requests), "--warmup-request-count", str(WARM_UP),
                       "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", str(tokens), "--artifact-dir", folder, "--ui", "none"]
            environ = {**os.environ, **({"SSL_CERT_FILE": str(ca_file)} if ca_file else {})}
            said = _run(command, seconds, environ)
            path = Path(folder, "profile_export.jsonl")
            if not path.exists():
                raise RuntimeError(f"{NAME} left no records: {said[-500:]}")
            records = [json.loads(line) for line in path.read_text().splitlines()]
        records = sorted(records, key=lambda one: one["metadata"]["request_start_ns"])
        metrics = [one["metrics"] for one in records if one["metadata"]["benchmark_phase"] == "profiling"]
        if len(metrics) != requests:
            raise RuntimeError(f"{NAME} has {len(metrics)} records of {requests} requests: {said[-500:]}")
        return [Record(one["time_to_first_token"]["value"] / 1e3, one["inter_token_latency"]["value"] / 1e3,
                       [gap / 1e3 for gap in one["inter_chunk_latency"]["value"]]) for one in metrics]


def install() -> Peer | str:
    """The tool, installed on first use into build/. Otherwise why it cannot be had."""
    python, command, tokenizer = FOLDER / "bin" / "python", FOLDER / "bin" / PACKAGE, FOLDER / "tokenizer"
    if not (command.exists() and tokenizer.exists()):
        uv = Path(sys.executable).parent / "uv"
        tool = str(uv) if uv.exists() else shutil.which("uv")
        if tool is None:
            return "uv is not here to install it"
        try:
            _run([tool, "venv", "-q", "--clear", "--python", sys.executable, str(FOLDER)], INSTALL_SECONDS)
            _run([tool, "pip", "install", "-q", "--python", str(python), f"{PACKAGE}=={VERSION}"], INSTALL_SECONDS)
            _run([str(python), "-c", _TOKENIZER, str(tokenizer)], INSTALL_SECONDS)
        except RuntimeError as error:
            return str(error)
    return Peer(command, tokenizer)


def _run(command: list[str], seconds: float, environ: dict[str, str] | None = None) -> str:
    """Run to its end and give what it printed. Raises RuntimeError; nothing it started outlives it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ,
                               start_new_session=True)
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{Path(command[0]).name} did not end in {seconds:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} {command[1]} ended with {process.returncode}: {said[-500:]}")
    return said
