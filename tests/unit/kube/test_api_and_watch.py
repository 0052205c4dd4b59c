"""Requests and watches against a server that misbehaves on demand. What a real API server does is tested in `tests/e2e`."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from scripted_api import Scripted

from exporter.kube import watch as watching
from exporter.kube.api import Api, ApiError, ClusterError, configuration
from exporter.kube.watch import Change, Watch

Json = dict[str, Any]
Answer = Callable[[str, str, dict[str, str]], tuple[int, Any]]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], tuple[Scripted, Api]]]:
    made: list[Scripted] = []

    def start(answer: Answer) -> tuple[Scripted, Api]:
        made.append(Scripted(answer))
        return made[-1], Api(made[-1].where, timeout=2.0)

    yield start
    for one in made:
        one.close()


def item(name: str, version: int = 1, **more: Any) -> Json:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}, **more}


def page(*items: Json, version: int = 10, more: str = "") -> tuple[int, Json]:
    return 200, {"metadata": {"resourceVersion": str(version), **({"continue": more} if more else {})}, "items": list(items)}


def event(kind: str, one: Json) -> Json:
    return {"type": kind, "object": one}


def until(check: Callable[[], Any], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


class Follower:
    """A watch with everything that it reported."""

    def __init__(self, api: Api, **more: Any) -> None:
        self.changes: list[Change[str]] = []
        self.watch: Watch[str] = Watch(api, "/api/v1/things", self._reduce, on_change=self.changes.extend, **more)
        self.watch.start()

    @staticmethod
    def _reduce(one: Json) -> str | None:
        return None if one.get("hidden") else f"{one['metadata']['name']}:{one.get('n', '')}"

    def names(self) -> list[str]:
        return sorted(self.watch.items().values())


class TestRequests:
    @pytest.mark.parametrize(("status", "body", "check"), [
        (404, {"message": "no such thing", "reason": "NotFound"}, lambda error: error.not_found and "no such thing" in error.message),
        (409, {"message": "m", "reason": "AlreadyExists"}, lambda error: error.exists and not error.conflict),
        (409, {"message": "m", "reason": "Conflict"}, lambda error: error.conflict and not error.exists),
        (410, {"message": "m"}, lambda error: error.gone),
        (429, {"message": "m"}, lambda error: error.passing and error.retry_after == 7.0 and not error.unknown_effect),
        (500, b"oops", lambda error: error.passing and error.unknown_effect and "oops" in error.message),
        (403, {"message": "m"}, lambda error: not error.passing and not error.unknown_effect),
    ])
    def test_refusals_say_what_they_mean(self, serve: Any, status: int, body: Any, check: Callable[[ApiError], bool]) -> None:
        _, api = serve(lambda *_: (status, body))
        with pytest.raises(ApiError) as refused:
            api.get("/x")
        assert check(refused.value)

    def test_no_answer_has_an_unknown_effect_and_is_not_sent_twice(self, serve: Any) -> None:
        server, api = serve(lambda *_: (200, iter([None])))
        with pytest.raises(ApiError) as failed:
            api.create("/x", {})
        assert failed.value.unknown_effect
        assert len(server.asked) == 1

    def test_a_connection_that_the_server_closed_meanwhile_is_replaced_for_a_read(self, serve: Any) -> None:
        server, api = serve(lambda *_: (200, {"ok": True}))
        api.get("/x")
        api._idle[0][0].sock.shutdown(2)
        assert api.get("/x") == {"ok": True}
        assert len(server.asked) == 2

    def test_every_wait_ends(self, serve: Any) -> None:
        _, api = serve(lambda *_: (200, iter([b"{", 5.0, b"}"])))
        start = time.monotonic()
        with pytest.raises(ApiError, match="no answer in time"):
            api.get("/x", timeout=0.3)
        assert time.monotonic() - start < 2.0

    def test_a_server_that_is_not_there(self) -> None:
        nobody = Api(configuration_for("http://127.0.0.1:1"), timeout=0.5)
        with pytest.raises(ApiError, match=r"127\.0\.0\.1:1") as failed:
            nobody.get("/x")
        assert failed.value.passing

    def test_what_is_no_json(self, serve: Any) -> None:
        for body in (b"hello", b"[1]"):
            _, api = serve(lambda *_, body=body: (200, body))
            with pytest.raises(ApiError, match="no JSON"):
                api.get("/x")

    def test_deleting_names_the_uid_and_tells_whether_it_was_there(self, serve: Any) -> None:
        answers = iter([(200, {}), (404, {}), (409, {"reason": "Conflict"})])
        _, api = serve(lambda *_: next(answers))
        assert api.delete("/x", uid="u") is True
        assert api.delete("/x", uid="u") is False
        assert api.delete("/x", uid="u") is False, "another object has the name now"

    def test_requests_are_counted_by_method(self, serve: Any) -> None:
        _, api = serve(lambda *_: (200, {}))
        api.get("/x")
        api.create("/x", {})
        api.create("/x", {})
        assert api.requests_by_method() == {"GET": 1, "POST": 2}

    def test_a_kubeconfig_that_is_not_there_or_no_yaml(self, tmp_path: Path) -> None:
        for name, content in (("absent", None), ("empty", ""), ("odd", "just: text")):
            if content is not None:
                (tmp_path / name).write_text(content)
            with pytest.raises(ClusterError):
                configuration(tmp_path / name)

    def test_an_address_that_is_none(self) -> None:
        with pytest.raises(ClusterError, match="no address"):
            Api(configuration_for("ftp://x"))


def configuration_for(host: str) -> Any:
    return client.Configuration(host=host)


class TestWatches:
    def test_pages_are_read_to_the_end_and_changes_follow(self, serve: Any) -> None:
        def answer(_: str, __: str, query: dict[str, str]) -> tuple[int, Any]:
            if "watch" in query:
                assert query["resourceVersion"] == "10"
                return 200, iter([event("ADDED", item("c", 11)), event("MODIFIED", item("a", 12, n=1)),
                                  event("DELETED", item("b", 13, n=9)), event("BOOKMARK", item("", 20)), 5.0])
            return page(item("b")) if query.get("continue") else page(item("a"), more="next")

        server, api = serve(answer)
        follower = Follower(api, page=1)
        assert follower.watch.wait(5)
        until(lambda: follower.watch._version == "20")
        assert follower.names() == ["a:1", "c:"]
        assert [(one.value, one.gone) for one in follower.changes] == [
            ("a:", False), ("b:", False), ("c:", False), ("a:1", False), ("b:9", True)]
        assert [query.get("limit") for _, _, query in server.asked[:2]] == ["1", "1"]
        assert server.asked[2][2]["allowWatchBookmarks"] == "true"
        follower.watch.close()

    def test_a_cut_watch_goes_on_from_the_last_version_without_listing(self, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watching, "SHORT_SECONDS", 0.0)
        rounds = itertools.count()

        def answer(_: str, __: str, query: dict[str, str]) -> tuple[int, Any]:
            if "watch" not in query:
                return page(item("a"))
            number = next(rounds)
            return 200, iter([event("MODIFIED", item("a", 11 + number, n=number)), None if number < 2 else 5.0])

        server, api = serve(answer)
        follower = Follower(api)
        until(lambda: follower.names() == ["a:2"])
        assert follower.watch.lists == 1
        assert [query["resourceVersion"] for _, _, query in server.asked if "watch" in query] == ["10", "11", "12"]
        follower.watch.close()

    def test_a_version_that_is_gone_lists_again_and_reports_only_what_changed(self, serve: Any) -> None:
        lists = itertools.count()

        def answer(_: str, __: str, query: dict[str, str]) -> tuple[int, Any]:
            if "watch" not in query:
                return page(item("a"), item("b"), version=10) if next(lists) == 0 else page(item("a"), item("c"), version=50)
            if query["resourceVersion"] == "10":
                return 200, iter([event("ERROR", {"code": 410, "message": "too old resource version", "reason": "Expired"})])
            return 200, iter([5.0])

        _, api = serve(answer)
        follower = Follower(api)
        until(lambda: follower.names() == ["a:", "c:"])
        assert [(one.value, one.gone) for one in follower.changes[2:]] == [("c:", False), ("b:", True)]
        follower.watch.close()

    def test_a_server_that_does_not_know_our_version_yet_is_listed_again(self, serve: Any) -> None:
        def answer(_: str, __: str, query: dict[str, str]) -> tuple[int, Any]:
            if "watch" not in query:
                return page(item("a"), version=5)
            if query["resourceVersion"] == "5":
                return 200, iter([5.0])
            return 504, {"message": "Too large resource version", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}

        _, api = serve(answer)
        follower = Follower(api)
        follower.watch._version = "99"
        assert follower.watch.wait(5)
        until(lambda: follower.watch.age == 0.0)
        follower.watch.close()

    def test_silence_is_not_trusted_for_ever(self, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watching, "SHORT_SECONDS", 0.0)
        _, api = serve(lambda _, __, query: (200, iter([30.0])) if "watch" in query else page())
        follower = Follower(api, silence=0.2)
        until(lambda: follower.watch.resumes >= 3)
        assert follower.watch.lists == 1
        follower.watch.close()

    def test_objects_that_no_longer_matter_are_gone(self, serve: Any) -> None:
        _, api = serve(lambda _, __, query: (200, iter([event("MODIFIED", item("a", 11, hidden=True)), 5.0])) if "watch" in query
                       else page(item("a"), item("b", hidden=True)))
        follower = Follower(api)
        until(lambda: len(follower.changes) == 2)
        assert [(one.value, one.gone) for one in follower.changes] == [("a:", False), ("a:", True)]
        follower.watch.close()

    def test_an_event_that_changes_nothing_is_not_reported(self, serve: Any) -> None:
        _, api = serve(lambda _, __, query: (200, iter([event("MODIFIED", item("a", 11)), event("BOOKMARK", item("", 12)), 5.0]))
                       if "watch" in query else page(item("a")))
        follower = Follower(api)
        until(lambda: follower.watch._version == "12")
        assert len(follower.changes) == 1
        follower.watch.close()

    def test_a_kind_that_the_cluster_lacks_counts_as_none_where_that_is_allowed(self, serve: Any) -> None:
        _, api = serve(lambda *_: (404, {"message": "the server could not find the requested resource"}))
        allowed, other = Follower(api, absent_is_empty=True), Follower(api)
        assert allowed.watch.wait(5)
        assert allowed.watch.error == ""
        assert not other.watch.wait(0.2)
        assert "could not find" in other.watch.error
        allowed.watch.close()
        other.watch.close()

    def test_it_says_that_it_does_not_know(self, serve: Any) -> None:
        _, api = serve(lambda *_: (500, {"message": "etcd is away"}))
        follower = Follower(api)
        until(lambda: "etcd is away" in follower.watch.error)
        assert not follower.watch.synced
        assert follower.watch.age == float("inf")
        follower.watch.close()

    def test_a_listener_that_fails_ends_nothing(self, serve: Any) -> None:
        _, api = serve(lambda _, __, query: (200, iter([event("ADDED", item("b", 11)), 5.0])) if "watch" in query else page(item("a")))
        failed = threading.Event()

        def listener(_: list[Change[str]]) -> None:
            failed.set()
            raise RuntimeError("the listener failed")

        watch: Watch[str] = Watch(api, "/x", lambda one: str(one["metadata"]["name"]), on_change=listener)
        watch.start()
        until(lambda: sorted(watch.items().values()) == ["a", "b"])
        assert failed.is_set()
        watch.close()

    @pytest.mark.parametrize("line", [b"{\n", b'"x"\n', b"{}\n", b'{"type":"ADDED"}\n'])
    def test_lines_that_are_no_events_are_survived(self, serve: Any, line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watching, "SHORT_SECONDS", 0.0)
        rounds = itertools.count()
        _, api = serve(lambda _, __, query: (200, iter([line] if next(rounds) == 0 else [event("ADDED", item("b", 11)), 5.0]))
                       if "watch" in query else page(item("a")))
        follower = Follower(api)
        until(lambda: follower.names() == ["a:", "b:"])
        follower.watch.close()

    def test_it_is_closed_at_once_whatever_it_waits_for(self, serve: Any) -> None:
        _, api = serve(lambda _, __, query: (200, iter([30.0])) if "watch" in query else page())
        follower = Follower(api)
        assert follower.watch.wait(5)
        until(lambda: follower.watch._answer is not None)
        start = time.monotonic()
        follower.watch.close()
        assert time.monotonic() - start < 1.0
        assert not follower.watch._thread.is_alive()
