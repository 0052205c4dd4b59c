"""Whether every result fits its 4,096 bytes is known before anything runs, for 32 NICs and figures that do not compress."""

from __future__ import annotations

import random

import pytest

from exporter.config import Config, capacity, worst_case
from exporter.config.capacity import GPUS, NICS, Capacity, canary_worst_case, check, probe_worst_case
from exporter.config.probes import MooncakeProbe, NcclProbe, NixlProbe, NodeProbe, UcclEpProbe
from probes.canary.params import CanaryParams
from probes.result import LIMIT, Result, decode, encode

KIB = 1024
ALL_SIZES = [64 * KIB << power for power in range(11)]


def with_sizes(count: int, *operations: str) -> MooncakeProbe:
    return MooncakeProbe.model_validate({"params": {"sizes": ALL_SIZES[:count], "operations": list(operations), "buffer": "64GiB"}})


def test_everything_that_is_on_by_default_fits() -> None:
    found = worst_case(Config())
    assert [one.probe for one in found] == ["node", "mooncake", "nixl"]
    assert all(one.fits for one in found), found


def test_the_default_matrix_of_every_probe_fits() -> None:
    for section in (NodeProbe(), MooncakeProbe(), NixlProbe(), NcclProbe(), UcclEpProbe()):
        assert probe_worst_case("nixl", section).fits, section


def test_the_longest_canary_fits() -> None:
    most = next(rule.le for rule in CanaryParams.model_fields["max_tokens"].metadata if hasattr(rule, "le"))
    assert canary_worst_case("chat", "long", most).fits


def test_a_canary_with_its_proof_of_kv_movement_fits_with_64_tokens_and_more_are_refused() -> None:
    assert canary_worst_case("chat", "long", 64, pd=True).fits
    pods = [{"name": role, "role": role, "url": f"http://{role}:8000"} for role in ("prefill", "decode")]
    target = {"name": "chat", "url": "http://h", "model": "m", "stack": "vllm", "pd": {"source": {"static": pods}}}

    def places(**fields: object) -> list[object]:
        return [where for where, _ in check(Config.model_validate({"canary": {"targets": [target | fields]}}))]

    assert places() == []
    assert places(params={"max_tokens": 200}) == [("canary", "targets", 0, "params", "max_tokens")] * 2
    own = places(prompts={"long": {"params": {"max_tokens": 200}}})
    assert own == [("canary", "targets", 0, "prompts", "long", "params", "max_tokens")]


def test_all_block_sizes_of_one_direction_fit_in_one_run() -> None:
    assert probe_worst_case("mooncake", with_sizes(11, "write", "batch_write")).fits


def test_more_sizes_and_more_operations_need_more() -> None:
    needs = [probe_worst_case("mooncake", with_sizes(count, *operations)).needed or 0
             for count, operations in ((1, ["write"]), (11, ["write"]), (11, ["write", "read"]), (11, ["write", "read", "batch_write"]))]
    assert needs == sorted(needs)
    assert needs[-1] > needs[0] + 1000


def test_every_variant_of_a_whole_node_counts() -> None:
    plain = NcclProbe.model_validate({"params": {"operations": ["sendrecv"], "sizes": ["1MiB"], "gpus": "all"}})
    rails = NcclProbe.model_validate({"params": {"operations": ["sendrecv"], "sizes": ["1MiB"], "gpus": "all", "rails": "each"}})
    one, all_ = (probe_worst_case("nccl", section) for section in (plain, rails))
    assert (all_.needed or 0) > (one.needed or 0) + GPUS * 20


def test_what_cannot_fit_is_refused_at_the_key_that_can_be_changed() -> None:
    config = Config.model_validate({"probes": {"nccl": {"enabled": True, "params": {
        "operations": ["all_reduce", "alltoall", "all_gather", "reduce_scatter", "sendrecv"],
        "sizes": [2**power for power in range(10, 26)]}}}})
    (where, what), = check(config)
    assert where == ("probes", "nccl", "params", "sizes")
    assert f"{LIMIT} fit" in what


def test_what_is_off_is_not_judged() -> None:
    config = Config.model_validate({"probes": {"nccl": {"enabled": False, "params": {"sizes": [2**power for power in range(10, 26)]}}}})
    assert check(config) == []


def test_more_than_can_be_told_does_not_fit() -> None:
    assert not Capacity("x", None).fits


@pytest.mark.parametrize("seed", range(20))
def test_the_worst_case_holds_for_other_figures_than_those_it_was_computed_with(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the limit: the largest matrix that is accepted is written whole whatever the figures are."""
    section = max((with_sizes(count, "write", "read", "batch_write", "batch_read") for count in range(1, 12)),
                  key=lambda one: (probe_worst_case("mooncake", one).fits, len(one.params.sizes)))
    worst = probe_worst_case("mooncake", section)
    assert worst.fits
    assert (worst.needed or 0) > LIMIT * 0.8
    monkeypatch.setattr(capacity._Figures, "__init__", lambda self, name="": setattr(self, "_random", random.Random(f"{seed}{name}")))
    frame = capacity._frame("mooncake")
    result = Result.model_validate({**frame, "measurements": [capacity._measurement(table) for table in capacity._tables(section)]})
    assert len(result.evidence.devices if result.evidence else []) == NICS
    assert decode(encode(result)).measurements == result.measurements
