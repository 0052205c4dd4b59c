"""Parameters of the KV probes: what they accept, what they refuse and what a run may cost."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from probes.kv.params import GIB, KIB, MIB, KvParams, MooncakeParams, NixlParams


def test_the_defaults_are_a_light_run_of_all_four_operations() -> None:
    params = MooncakeParams()
    assert params.sizes == [64 * KIB, MIB, 16 * MIB]
    assert params.operations == ["write", "read", "batch_write", "batch_read"]
    assert params.memory == "dram"
    assert params.seconds * len(params.sizes) * len(params.operations) <= 5


def test_sizes_and_times_are_read_with_units_and_sizes_ascend() -> None:
    params = NixlParams.model_validate({"sizes": ["1MiB", "64KiB", 4096], "seconds": "500ms", "volume": "2GiB", "ceiling": "400GB/s"})
    assert params.sizes == [4096, 64 * KIB, MIB]
    assert (params.seconds, params.volume, params.ceiling) == (0.5, 2 * GIB, 400e9)


@pytest.mark.parametrize(("spec", "where"), [
    ({"sizes": []}, "sizes"),
    ({"sizes": ["64KiB", 65536]}, "is given twice"),
    ({"sizes": [512]}, "sizes.0"),
    ({"sizes": ["2GiB"], "buffer": "64GiB"}, "sizes.0"),
    ({"operations": ["write", "write"]}, "is given twice"),
    ({"operations": ["copy"]}, "operations.0"),
    ({"sizes": ["64MiB"]}, "buffer allows 256MiB"),
    ({"threads": 64, "sizes": ["1MiB"]}, "need 512MiB of registered memory"),
    ({"memory": "vram"}, "memory"),
    ({"iterations": 0}, "iterations"),
    ({"seconds": 0}, "seconds"),
    ({"ceiling": 0}, "ceiling"),
    ({"sises": ["1MiB"]}, "sises"),
    ({"env": {"LD_PRELOAD": "x.so"}}, "LD_PRELOAD"),
    ({"env": {"AWS_SECRET_ACCESS_KEY": "x"}}, "AWS_SECRET_ACCESS_KEY"),
])
@pytest.mark.parametrize("model", [MooncakeParams, NixlParams])
def test_a_wrong_parameter_is_refused_by_name(model: type[KvParams], spec: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(spec)
    assert where in str(refused.value)


@pytest.mark.parametrize("protocol", ["EFA", "ib", "", "nosuch"])
def test_mooncake_gets_only_protocols_it_knows_because_it_takes_any_word_for_tcp(protocol: str) -> None:
    with pytest.raises(ValidationError):
        MooncakeParams.model_validate({"protocol": protocol})


def test_a_batch_needs_the_memory_of_all_its_blocks_and_a_single_operation_does_not() -> None:
    assert MooncakeParams(sizes=[16 * MIB], operations=["batch_read"], batch=8, threads=2).region == 256 * MIB
    assert MooncakeParams(sizes=[64 * MIB], operations=["write", "read"], batch=8, threads=2).region == 128 * MIB


def test_the_most_bytes_bound_each_direction_apart() -> None:
    params = MooncakeParams(sizes=[MIB], operations=["write"], iterations=10, warmup=2)
    assert params.most_bytes() == (15 * MIB, 0)
    assert MooncakeParams(sizes=[MIB], operations=["read"], iterations=10, warmup=2).most_bytes() == (0, 15 * MIB)


def test_the_volume_bounds_the_bytes_of_large_blocks() -> None:
    few = MooncakeParams(sizes=[64 * MIB], operations=["write"], volume=GIB, iterations=1000)
    assert few.most_bytes()[0] <= GIB + 5 * 64 * MIB


def test_the_json_schema_allows_numbers_and_texts() -> None:
    items = NixlParams.model_json_schema()["properties"]["sizes"]["items"]
    assert "64KiB" in json.dumps(items) or {"string", "integer"} <= {kind["type"] for kind in items["anyOf"]}


def test_the_parameters_import_no_engine() -> None:
    code = "import sys, probes.kv.params; print({'mooncake', 'nixl', 'numpy', 'ctypes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
