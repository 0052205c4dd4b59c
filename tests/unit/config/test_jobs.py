"""What a configuration asks for: one job for each probe and target and for each canary prompt, with everything filled in."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from exporter.config import Config, Job, Secret, SecretError
from exporter.config.probes import Target
from probes.canary.params import CanaryParams
from probes.kv.params import MooncakeParams
from probes.node_params import NodeParams


def jobs(**config: Any) -> dict[str, Job]:
    return {job.id: job for job in Config.model_validate(config).jobs()}


def static(*names: str) -> dict[str, Any]:
    return {"mode": "static", "nodes": [{"name": name} for name in names]}


def test_one_machine_checks_itself_and_moves_blocks_between_two_ranks() -> None:
    found = jobs(inventory={"nodes": [{"name": "here"}]})
    assert list(found) == ["node/here", "mooncake/here--here", "nixl/here--here"]
    assert found["mooncake/here--here"].nodes == ("here", "here")
    assert {job.lanes for job in found.values()} == {("node/here",)}


def test_two_nodes_are_one_pair_and_more_are_a_ring() -> None:
    assert [job.nodes for job in jobs(inventory=static("a", "b")).values() if job.probe == "nixl"] == [("a", "b")]
    ring = [job.nodes for job in jobs(inventory=static("a", "b", "c")).values() if job.probe == "nixl"]
    assert ring == [("a", "b"), ("b", "c"), ("c", "a")]


def test_runs_grow_with_nodes_and_not_with_pairs() -> None:
    assert len(jobs(inventory=static(*(f"n{index}" for index in range(100))))) == 300


def test_configured_targets_replace_the_default_ones() -> None:
    found = jobs(inventory=static("a", "b", "c"), probes={"nixl": {"targets": [{"name": "far", "nodes": ["a", "c"]}]}})
    assert [job.id for job in found.values() if job.probe == "nixl"] == ["nixl/far"]
    assert found["nixl/far"].lanes == ("node/a", "node/c")


def test_a_probe_that_is_off_has_no_job() -> None:
    assert [job.probe for job in jobs(probes={"mooncake": {"enabled": False}, "nixl": {"enabled": False}}).values()] == ["node"]


def test_the_spec_of_a_job_is_what_the_worker_accepts() -> None:
    found = jobs(inventory={"nodes": [{"name": "here", "instance_type": "p5.48xlarge"}]},
                 probes={"mooncake": {"params": {"sizes": ["64KiB"], "seconds": "500ms"}}})
    assert found["mooncake/here--here"].spec == {"sizes": [65536], "seconds": 0.5}
    MooncakeParams.model_validate(found["mooncake/here--here"].spec)
    assert NodeParams.model_validate(found["node/here"].spec).instance_type == "p5.48xlarge"


def test_an_instance_type_set_for_the_probe_wins_over_the_inventory() -> None:
    found = jobs(inventory={"nodes": [{"name": "here", "instance_type": "p5.48xlarge"}]},
                 probes={"node": {"params": {"instance_type": "p5en.48xlarge"}}})
    assert found["node/here"].spec == {"instance_type": "p5en.48xlarge"}


def test_long_names_of_nodes_still_make_a_name_for_the_pair() -> None:
    one, other = "a" * 60, "b" * 60
    found = [job.target for job in jobs(inventory=static(one, other)).values() if job.probe == "nixl"]
    assert found == ["a" * 30 + "--" + "b" * 30]
    assert Target(nodes=("x", "y")).label == "x--y"


CANARY = {"name": "chat", "url": "http://llm:8000", "model": "m"}


def test_a_canary_sends_a_short_and_a_long_prompt_and_never_both_at_once() -> None:
    found = {name: job for name, job in jobs(canary={"targets": [CANARY]}).items() if job.probe == "canary"}
    short, long = found["canary/chat/short"], found["canary/chat/long"]
    assert (short.when.interval, long.when.interval) == (60.0, 600.0)
    assert short.lanes == long.lanes == ("canary/chat",)
    assert CanaryParams.model_validate(short.spec).prompt == "short"
    assert short.deadline > CanaryParams.model_validate(short.spec).longest


def test_parameters_of_a_prompt_win_over_those_of_its_target() -> None:
    target = CANARY | {"params": {"max_tokens": 8, "temperature": None}, "prompts": {"long": {"params": {"max_tokens": 64}}}}
    found = jobs(canary={"targets": [target]})
    assert found["canary/chat/short"].spec["max_tokens"] == 8
    assert found["canary/chat/long"].spec["max_tokens"] == 64
    assert found["canary/chat/long"].spec["temperature"] is None


def test_a_disabled_canary_or_prompt_has_no_job() -> None:
    assert "canary/chat/long" not in jobs(canary={"targets": [CANARY | {"prompts": {"long": {"enabled": False}}}]})
    assert not [job for job in jobs(canary={"targets": [CANARY | {"enabled": False}]}).values() if job.probe == "canary"]


def test_schedules_take_what_they_do_not_say_from_the_common_section() -> None:
    night = {"from": "22:00", "to": "06:00", "reason": "training"}
    found = jobs(schedule={"time_zone": "Europe/Berlin", "run_at_start": False, "start_spread": "1m", "quiet_windows": [night]},
                 probes={"node": {"schedule": {"cron": "0 3 * * *"}},
                         "mooncake": {"schedule": {"jitter": "10s", "quiet_windows": [], "time_zone": "UTC", "run_at_start": True}}})
    node, mooncake = found[next(name for name in found if name.startswith("node/"))].when, next(
        job.when for job in found.values() if job.probe == "mooncake")
    assert (node.interval, node.cron, node.zone, node.jitter, node.run_at_start) == (None, "0 3 * * *", "Europe/Berlin", 0.0, False)
    assert [(window.zone, window.reason) for window in node.quiet] == [("Europe/Berlin", "training")]
    assert (mooncake.interval, mooncake.jitter, mooncake.zone, mooncake.run_at_start, mooncake.quiet) == (1800.0, 10.0, "UTC", True, ())


def test_jitter_is_a_tenth_of_the_interval_and_at_most_a_minute() -> None:
    found = jobs(probes={"nixl": {"deadline": "5s", "schedule": {"interval": "2m"}}})
    assert {job.probe: job.when.jitter for job in found.values()} == {"node": 60.0, "mooncake": 60.0, "nixl": 12.0}


def test_a_key_in_a_file_is_named_to_the_worker_and_read_again_by_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    job = jobs(canary={"targets": [CANARY | {"key": {"file": str(tmp_path / "key")}}]})["canary/chat/short"]
    assert "key_file" not in job.spec
    assert job.spec_with(tmp_path)["key_file"] == str(tmp_path / "key")


def test_a_key_in_a_variable_is_written_where_only_this_user_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", "sk-1")
    job = jobs(canary={"targets": [CANARY | {"key": {"env": "LLM_KEY"}}]})["canary/chat/short"]
    path = Path(job.spec_with(tmp_path)["key_file"])
    assert path.read_text() == "sk-1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.parent == tmp_path
    assert "sk-1" not in repr(job)


def test_a_key_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path) -> None:
    job = jobs(canary={"targets": [CANARY | {"key": {"file": str(tmp_path / "none")}}]})["canary/chat/short"]
    with pytest.raises(SecretError, match="none cannot be read"):
        job.spec_with(tmp_path)


def test_a_planted_link_is_not_followed_when_a_key_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", "sk-1")
    job = jobs(canary={"targets": [CANARY | {"key": {"env": "LLM_KEY"}}]})["canary/chat/short"]
    path = Path(job.spec_with(tmp_path)["key_file"])
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SecretError, match="cannot be written"):
        job.spec_with(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_the_same_configuration_gives_the_same_jobs() -> None:
    config = {"canary": {"targets": [CANARY]}}
    assert jobs(**config) == jobs(**config)


def test_references_name_every_file_and_secret() -> None:
    config = Config.model_validate({"server": {"web_config": "web.yml", "bearer_token": {"file": "token"}},
                                    "canary": {"targets": [CANARY | {"url": "https://llm", "ca_file": "ca.pem", "key": {"env": "K"}}]}})
    assert [(reference.loc[-1], reference.watched) for reference in config.references()] == [
        ("web_config", Path("web.yml")), ("bearer_token", Path("token")), ("ca_file", Path("ca.pem")), ("key", None)]
    assert str(Secret(env="K")) == "variable K"
