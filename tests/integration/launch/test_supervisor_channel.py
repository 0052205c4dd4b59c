"""What a supervisor makes of a child that does not keep to the protocol between them: real processes on both sides."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.processes import descendants
from probes.reasons import Reason
from probes.result import Result, decode
from probes.supervisor import write_mark

ROOT = Path(__file__).parents[3]
DEADLINE = 6.0
CHILD = """#!{python}
import json, os, socket, sys, time
link = socket.socket(fileno=int(os.environ["EFA_PULSE_CHANNEL_FD"]))
def tell(**message):
    link.sendall(json.dumps(message).encode() + b"\\n")
    return link.recv(1)
"""
RESULT = Result.model_validate({"run_id": "r", "probe": "node", "target": "", "node": "n", "started": 1.0, "finished": 2.0, "reason": "ok"})
SUPERVISOR = """
import os, sys
sys.executable = sys.argv[1]
from probes.supervisor import main
sys.exit(main(os.environ))
"""


def supervise(folder: Path, child: str) -> tuple[Result, float]:
    """The result that a supervisor leaves of this child, and the seconds it took."""
    script, result = folder / "child", folder / "result"
    script.write_text(CHILD.format(python=sys.executable) + child)
    script.chmod(0o755)
    told = {"RUN_ID": "r1", "PROBE": "node", "NODE": "here", "DEADLINE": str(DEADLINE), "RESULT_PATH": str(result)}
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **{f"EFA_PULSE_{name}": value for name, value in told.items()}}
    began = time.monotonic()
    command = [sys.executable, "-c", SUPERVISOR, str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=DEADLINE + 10, check=False)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr.decode()
    assert decode(done.stdout) == decode(result.read_bytes())
    assert not [pid for pid in descendants(1) if str(script) in _command(pid)], "a process was left"
    return decode(result.read_bytes()), took


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("line", [
    b"5", b"{}", b'{"phase":"banana"}', b'{"report":[1]}', b"\xff\xfe", b"[" * 100_000,
])
def test_what_is_no_message_ends_the_run_as_unknown(line: bytes, tmp_path: Path) -> None:
    result, _ = supervise(tmp_path, f"link.sendall({line!r} + b'\\n'); time.sleep(60)")
    assert result.reason is Reason.INTERNAL_ERROR
    assert "no message" in result.message


@pytest.mark.parametrize("report", [
    {"reason": "banana"}, {"reason": "ok", "evidence": [1]}, {},
])
def test_a_report_of_a_wrong_shape_is_never_a_good_one(report: dict[str, object], tmp_path: Path) -> None:
    result, _ = supervise(tmp_path, f"tell(report={report!r})")
    assert result.reason is Reason.INTERNAL_ERROR


def test_a_child_cannot_speak_for_another_rank_or_node(tmp_path: Path) -> None:
    result, _ = supervise(tmp_path, "tell(report={'reason': 'ok', 'run_id': 'r2', 'node': 'there', 'rank': 3, 'started': 1.0})")
    assert (result.reason, result.run_id, result.node, result.rank) == (Reason.OK, "r1", "here", 0)
    assert result.started > 1.0


def test_the_first_report_counts(tmp_path: Path) -> None:
    result, _ = supervise(tmp_path, "link.sendall(b'{\"report\":{\"reason\":\"wrong_content\"}}\\n{\"report\":{\"reason\":\"ok\"}}\\n')")
    assert result.reason is Reason.WRONG_CONTENT


def test_a_flood_of_messages_whose_answers_nobody_reads_does_not_outlast_the_deadline(tmp_path: Path) -> None:
    result, took = supervise(tmp_path, "while True: link.sendall(b'{\"note\":\"x\"}\\n' * 1000)")
    assert result.reason is Reason.CPU_STARVED, "it never entered a phase"
    assert took < DEADLINE + 4


def test_a_line_without_end_takes_no_memory_without_end(tmp_path: Path) -> None:
    result, took = supervise(tmp_path, "while True: link.sendall(b'x' * 65536)")
    assert (result.reason, "without an end" in result.message) == (Reason.INTERNAL_ERROR, True)
    assert took < DEADLINE


def test_a_dead_engine_is_seen_while_a_process_it_left_holds_the_channel(tmp_path: Path) -> None:
    result, took = supervise(tmp_path, "tell(phase='measure')\nif os.fork() == 0: time.sleep(60)\nos._exit(3)")
    assert (result.reason, "status 3 in phase measure" in result.message) == (Reason.ENGINE_CRASHED, True)
    assert took < DEADLINE


@pytest.mark.parametrize("after", ["if os.fork() == 0: time.sleep(60)", "time.sleep(60)", "os.abort()"])
def test_a_report_that_was_told_stands_whatever_becomes_of_the_process(after: str, tmp_path: Path) -> None:
    result, took = supervise(tmp_path, f"tell(report={{'reason': 'ok', 'message': 'all well'}})\n{after}")
    assert (result.reason, result.message) == (Reason.OK, "all well")
    assert took < DEADLINE


def test_a_pipe_that_nobody_reads_in_place_of_the_result_file_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    problem = write_mark(tmp_path / "pipe", RESULT)
    assert problem is not None
    assert "pipe" in problem
