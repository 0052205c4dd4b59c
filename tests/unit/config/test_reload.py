"""Reload: a changed file is read when it is whole, a wrong one changes nothing, and every outcome is told once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.config import Config, Reloader, load

GOOD = "metrics: {best_of: %d}\n"


@dataclass
class Watch:
    """A reloader whose clock the test moves, and what it reported."""

    path: Path
    now: float = 0.0
    reports: list[tuple[Config | None, str | None]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reloader = Reloader(self.path, self._report, current=load(self.path, references=False), changed=self._changed,
                                 poll=5.0, settle=1.0, clock=lambda: 1000.0 + self.now, monotonic=lambda: self.now)

    def _report(self, config: Config | None, error: str | None, at: float) -> None:
        assert at == 1000.0 + self.now
        self.reports.append((config, error))

    def _changed(self, paths: tuple[Path, ...]) -> None:
        self.changed += [path.name for path in paths]

    def wait(self, seconds: float) -> None:
        """Let time pass as the thread would."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self.reloader.check())
        self.reloader.check()

    @property
    def best_of(self) -> list[int | str]:
        """What was reported, in short."""
        return [config.metrics.best_of if config else "refused" for config, _ in self.reports]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD % 1)
    return Watch(path)


def test_a_file_that_does_not_change_is_never_reported(watch: Watch) -> None:
    watch.wait(60.0)
    assert watch.reports == []


def test_a_changed_file_is_read_when_it_has_settled(watch: Watch) -> None:
    watch.path.write_text(GOOD % 2)
    watch.wait(0.5)
    assert watch.reports == []
    watch.wait(6.0)
    assert watch.best_of == [2]
    assert watch.changed == ["config.yaml"]


def test_a_file_that_is_only_touched_is_not_read_again(watch: Watch) -> None:
    os.utime(watch.path, (1, 1))
    watch.wait(30.0)
    assert watch.reports == []


def test_the_same_length_and_the_same_time_do_not_hide_a_change(watch: Watch) -> None:
    before = watch.path.stat()
    watch.path.write_text(GOOD % 9)
    os.utime(watch.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    watch.wait(10.0)
    assert watch.best_of == [9]


def test_a_replaced_file_is_read(watch: Watch) -> None:
    other = watch.path.with_name("new")
    other.write_text(GOOD % 3)
    other.rename(watch.path)
    watch.wait(10.0)
    assert watch.best_of == [3]


def test_a_wrong_file_is_told_once_and_the_right_one_after_it(watch: Watch) -> None:
    watch.path.write_text("metrics: {best_off: 3}\n")
    watch.wait(60.0)
    assert watch.best_of == ["refused"]
    error = watch.reports[0][1]
    assert error is not None
    assert "did you mean 'best_of'?" in error
    watch.path.write_text(GOOD % 4)
    watch.wait(60.0)
    assert watch.best_of == ["refused", 4]


def test_a_file_being_written_is_waited_for(watch: Watch) -> None:
    """Each part alone is wrong or means something else; none of them is taken."""
    for part in ("", "metrics: {", "metrics: {best_of: 1", "metrics: {best_of: 12}\n"):
        watch.path.write_text(part)
        watch.wait(0.9)
        assert watch.reports == []
    watch.wait(6.0)
    assert watch.best_of == [12]


def test_a_file_left_empty_by_an_editor_for_a_moment_is_not_the_default_configuration(watch: Watch) -> None:
    watch.path.write_text("")
    watch.wait(4.0)
    watch.path.write_text(GOOD % 5)
    watch.wait(10.0)
    assert watch.best_of == [5]


def test_a_file_that_stays_empty_is_the_default_configuration(watch: Watch) -> None:
    watch.path.write_text("")
    watch.wait(12.0)
    assert [config for config, _ in watch.reports] == [Config()]


def test_a_file_that_is_removed_is_refused_and_its_return_is_seen(watch: Watch) -> None:
    watch.path.unlink()
    watch.wait(12.0)
    assert watch.best_of == ["refused"]
    assert "no such file" in str(watch.reports[0][1])
    watch.path.write_text(GOOD % 6)
    watch.wait(12.0)
    assert watch.best_of == ["refused", 6]


def test_a_moved_configmap_link_is_seen(tmp_path: Path) -> None:
    """Kubernetes writes a new folder and then moves the link `..data`; the file's own link never changes."""
    for number in (1, 2):
        folder = tmp_path / f"..2026_0{number}"
        folder.mkdir()
        (folder / "config.yaml").write_text(GOOD % number)
    (tmp_path / "..data").symlink_to("..2026_01")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    watch = Watch(tmp_path / "config.yaml")
    (tmp_path / "..data_tmp").symlink_to("..2026_02")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    watch.wait(12.0)
    assert watch.best_of == [2]


@pytest.fixture
def with_token(tmp_path: Path) -> Watch:
    (tmp_path / "token").write_text("one")
    (tmp_path / "config.yaml").write_text("server: {bearer_token: {file: token}}\n")
    return Watch(tmp_path / "config.yaml")


def test_a_changed_secret_is_a_reload_and_named(with_token: Watch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("two")
    with_token.wait(12.0)
    assert with_token.changed == ["token"]
    (config, error), = with_token.reports
    assert error is None
    assert config is not None
    assert config.server.bearer_token is not None
    assert config.server.bearer_token.read() == "two"


def test_a_secret_that_vanishes_is_refused_and_its_return_is_a_reload(with_token: Watch, tmp_path: Path) -> None:
    (tmp_path / "token").unlink()
    with_token.wait(12.0)
    assert with_token.best_of == ["refused"]
    (tmp_path / "token").write_text("three")
    with_token.wait(12.0)
    assert with_token.best_of == ["refused", 3]


def test_a_file_refused_for_a_secret_that_is_not_there_yet_is_taken_when_it_comes(watch: Watch, tmp_path: Path) -> None:
    watch.path.write_text("server: {bearer_token: {file: later}}\nmetrics: {best_of: 8}\n")
    watch.wait(12.0)
    (tmp_path / "later").write_text("here")
    watch.wait(12.0)
    assert watch.best_of == ["refused", 8]


def test_a_file_that_changed_before_the_watch_began_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD % 2)
    watch = Watch(path)
    watch.reloader = Reloader(path, watch._report, current=Config(), poll=5.0, settle=1.0, clock=lambda: 1000.0 + watch.now,
                              monotonic=lambda: watch.now)
    watch.wait(6.0)
    assert watch.best_of == [2]


def test_a_reload_on_request_reads_at_once_whatever_the_file_says(watch: Watch) -> None:
    outcome = watch.reloader.reload()
    assert outcome.ok
    assert outcome.changed == ()
    watch.path.write_text("no: thing\n")
    outcome = watch.reloader.reload()
    assert not outcome.ok
    assert outcome.changed == (watch.path,)
    watch.wait(30.0)
    assert watch.best_of == [1, "refused"]


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[Reloader, Path, list[Config | None], threading.Event]]:
    path, seen, told = tmp_path / "config.yaml", list[Config | None](), threading.Event()
    path.write_text(GOOD % 1)

    def report(config: Config | None, error: str | None, at: float) -> None:
        seen.append(config)
        told.set()

    reloader = Reloader(path, report, current=load(path), poll=0.05, settle=0.05)
    reloader.start()
    yield reloader, path, seen, told
    assert reloader.close(2.0)


def test_the_thread_sees_a_change(real: tuple[Reloader, Path, list[Config | None], threading.Event]) -> None:
    _, path, seen, told = real
    path.write_text(GOOD % 2)
    assert told.wait(3.0)
    assert seen[0] is not None
    assert seen[0].metrics.best_of == 2


def test_a_signal_reloads(real: tuple[Reloader, Path, list[Config | None], threading.Event]) -> None:
    reloader, _, seen, told = real
    before = signal.signal(signal.SIGHUP, lambda *_: reloader.request())
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        assert told.wait(3.0)
        assert len(seen) == 1
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_reader_that_fails_does_not_end_the_watch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, calls, told = tmp_path / "config.yaml", list[int](), threading.Event()
    path.write_text(GOOD % 1)

    def report(config: Config | None, error: str | None, at: float) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("the receiver failed")
        told.set()

    reloader = Reloader(path, report, current=load(path), poll=0.05, settle=0.02)
    reloader.start()
    try:
        reloader.request()
        until = time.monotonic() + 3.0
        while not calls and time.monotonic() < until:
            time.sleep(0.01)
        reloader.request()
        assert told.wait(3.0)
        assert "failed" in caplog.text
    finally:
        assert reloader.close(2.0)
