"""From a file to a Config: what is wrong with the file itself, relative names, secrets by reference, and no surprise for any input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import Config, ConfigError, Secret, SecretError, load
from exporter.config.load import from_bytes
from exporter.config.tour import all_paths

CANARY = "canary: {targets: [{name: a, url: 'https://a', model: m%s}]}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def problems(path: Path, **options: bool) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, **options)
    return [str(problem) for problem in caught.value.problems]


def test_an_empty_file_is_the_default_configuration(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == Config()
    assert load("/dev/null") == Config()


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert problems(path) == [f"{path}: no such file: check the name, or start without a configuration file"]


def test_a_folder(tmp_path: Path) -> None:
    assert problems(tmp_path) == [f"{tmp_path}: this is a folder: name the file in it"]


def test_a_file_below_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, "") / "more"
    assert problems(path) == [f"{path}: cannot be read: Not a directory: check owner and mode of the file and its folders"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.chmod(0)
    assert problems(path) == [f"{path}: cannot be read: Permission denied: check owner and mode of the file and its folders"]


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert "it is no regular file" in problems(path)[0]


def test_a_name_with_a_nul_character() -> None:
    assert "cannot be read" in problems(Path("a\0b"))[0]


def test_all_problems_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "metrics: {best_of: x}\nserver: {listen: 1}\nlogging: {levle: info}\n")
    assert [line.split(": ")[1] for line in problems(path)] == ["metrics.best_of", "server.listen", "logging.levle"]


def test_an_unknown_key_does_not_hide_what_only_a_whole_section_shows(tmp_path: Path) -> None:
    said = problems(written(tmp_path, "probes:\n  nixl: {shedule: {}, deadline: 2h}\ninventory: {nodse: []}\n"))
    assert [line.split(": ")[1] for line in said] == ["probes.nixl.schedule.interval", "probes.nixl.shedule", "inventory.nodse"]


def test_a_broken_section_does_not_hide_what_others_say_about_each_other(tmp_path: Path) -> None:
    said = problems(written(tmp_path, "metrics: {best_of: 0}\nprobes: {node: {targets: [{nodes: [elsewhere]}]}}\n"))
    assert [line.split(": ")[1] for line in said] == ["metrics.best_of", "probes.node.targets[0].nodes[0]"]


def test_a_relative_file_is_relative_to_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("the-token\n")
    written(tmp_path, "server: {bearer_token: {file: token}}\n")
    monkeypatch.chdir(tmp_path.parent)
    token = load(Path(tmp_path.name, "config.yaml")).server.bearer_token
    assert token is not None
    assert token.file == tmp_path / "token"
    assert token.read() == "the-token"


def test_references_may_be_left_unchecked(tmp_path: Path) -> None:
    path = written(tmp_path, CANARY % ", key: {env: EFA_PULSE_NOT_SET}, ca_file: not/there.pem")
    assert [line.split(": ")[1] for line in problems(path)] == ["canary.targets[0].key", "canary.targets[0].ca_file"]
    assert load(path, references=False).canary.targets[0].name == "a"


@pytest.mark.parametrize(("content", "says"), [
    (b"", "is empty"), (b" \n", "is empty"), (b"two\nlines", "more than one line"), (b"\xff\xfe", "not UTF-8"),
    (b"x" * 100_000, "larger than"),
])
def test_a_secret_file_that_holds_no_secret(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SecretError, match=says):
        Secret(file=path).read()


def test_a_secret_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key")
    with pytest.raises(SecretError, match="no regular file"):
        Secret(file=tmp_path / "key").read()


def test_a_secret_of_the_environment() -> None:
    assert Secret(env="A_KEY").read({"A_KEY": " k \n"}) == "k"
    with pytest.raises(SecretError, match="variable A_KEY is empty or not set"):
        Secret(env="A_KEY").read({})


def test_neither_text_nor_message_of_a_secret_shows_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("do-not-show\nme")
    secret = Secret(file=tmp_path / "key")
    with pytest.raises(SecretError) as caught:
        secret.read()
    assert "do-not-show" not in f"{secret} {secret!r} {caught.value}"


def test_sections_that_begin_with_x_hold_what_anchors_refer_to(tmp_path: Path) -> None:
    path = written(tmp_path, "x-anything: [{not: 1, a: &best 7}]\nmetrics: {best_of: *best}\n")
    assert load(path).metrics.best_of == 7


def test_free_request_text_may_hold_what_looks_like_a_variable(tmp_path: Path) -> None:
    path = written(tmp_path, CANARY % ", params: {extra_body: {stop: ['${END}']}}")
    assert load(path).canary.targets[0].spec("short")["extra_body"] == {"stop": ["${END}"]}


def taken(raw: bytes) -> Config | ConfigError:
    try:
        return from_bytes(raw, Path("f"), references=False)
    except ConfigError as error:
        return error


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_config_or_a_config_error(raw: bytes) -> None:
    found = taken(raw)
    assert isinstance(found, Config) or found.problems


TEXTS = st.sampled_from(["", "30s", "64KiB", "a", "efa", "@daily", "UTC", "x\0y"])
KEYS = st.sampled_from(["name", "file", "interval", "nodes", "x"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**12) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(all_paths()), VALUES)
def test_any_value_at_any_key_is_taken_or_explained(path: str, value: Any) -> None:
    tree: Any = value
    for part in reversed(path.split(".")):
        name, many = part.removesuffix("[]"), part.endswith("[]")
        tree = {name: [tree] if many else tree}
    found = taken(yaml.safe_dump(tree).encode())
    if isinstance(found, ConfigError):
        assert all(problem.what for problem in found.problems)
        assert any(problem.path for problem in found.problems)
    else:
        assert len({job.id for job in found.jobs()}) == len(found.jobs())


def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("grafana: {url: 'http://admin:hunter2@grafana'}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "hunter2" not in str(caught.value)
    assert "http://***@grafana" in str(caught.value)
