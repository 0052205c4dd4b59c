"""The clock of a request: kernel times until the wall clock steps."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from probes.canary.clock import Clocks, Stopwatch

MS = 1_000_000


@dataclass
class MadeClocks:
    """A wall clock and a monotonic clock that a test moves."""

    real: int = 1_700_000_000_000_000_000
    mono: int = 5_000_000_000

    def pass_ms(self, ms: float) -> None:
        self.real += int(ms * MS)
        self.mono += int(ms * MS)

    def clocks(self) -> Clocks:
        return Clocks(real=lambda: self.real, monotonic=lambda: self.mono)


def test_kernel_times_count_from_the_write() -> None:
    made = MadeClocks()
    watch = Stopwatch(made.clocks())
    made.pass_ms(50)
    watch.start()
    made.pass_ms(100)
    arrived = made.real
    made.pass_ms(4)  # the process is late
    moment = watch.stop(arrived)
    assert watch.clock == "kernel"
    assert watch.seconds(moment) == pytest.approx(0.100)
    assert watch.lag == pytest.approx(0.004)


@pytest.mark.parametrize("step_ms", [-3_600_000, -0.3, 0.3, 3_600_000])
def test_a_step_of_the_wall_clock_falls_back_to_user_time(step_ms: float) -> None:
    made = MadeClocks()
    watch = Stopwatch(made.clocks())
    watch.start()
    made.pass_ms(10)
    first = watch.stop(made.real)
    made.real += int(step_ms * MS)
    made.pass_ms(10)
    second = watch.stop(made.real)
    assert watch.clock == "user"
    assert [watch.seconds(first), watch.seconds(second)] == pytest.approx([0.010, 0.020])
    assert watch.lag is None


def test_a_step_before_the_write_does_not_matter() -> None:
    made = MadeClocks()
    watch = Stopwatch(made.clocks())
    made.real += 3600 * 1000 * MS
    watch.stop(None)
    watch.start()
    made.pass_ms(5)
    assert watch.seconds(watch.stop(made.real)) == pytest.approx(0.005)
    assert watch.clock == "kernel"


def test_slewing_is_no_step() -> None:
    made = MadeClocks()
    watch = Stopwatch(made.clocks())
    watch.start()
    for _ in range(100):
        made.pass_ms(10.05)  # NTP makes both clocks run 0.5 % fast
        watch.stop(made.real)
    assert watch.clock == "kernel"


def test_a_read_without_a_stamp_falls_back_to_user_time() -> None:
    made = MadeClocks()
    watch = Stopwatch(made.clocks())
    watch.start()
    made.pass_ms(7)
    moment = watch.stop(None)
    assert watch.clock == "user"
    assert watch.seconds(moment) == pytest.approx(0.007)


def test_an_interruption_between_the_two_clocks_is_no_step() -> None:
    made = MadeClocks()
    reads = iter([0, 0, 0, 2 * MS])  # preempted for 2 ms inside one pair of reads

    def real() -> int:
        made.pass_ms(next(reads, 0) / MS)
        return made.real

    watch = Stopwatch(Clocks(real=real, monotonic=lambda: made.mono))
    watch.start()
    watch.stop(made.real)
    assert watch.clock == "kernel"


def test_the_real_clocks_agree_over_a_short_wait() -> None:
    watch = Stopwatch()
    watch.start()
    time.sleep(0.01)
    moment = watch.stop(time.time_ns())
    assert watch.clock == "kernel"
    assert 0.01 <= watch.seconds(moment) < 5
