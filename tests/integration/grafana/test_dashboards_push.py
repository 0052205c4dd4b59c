"""`efa-pulse dashboards` against a double of Grafana's API: what is pushed, what is left alone, and what each trouble says."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grafana_double import EDITOR, VIEWER, GrafanaDouble, Refused, slow
from thismachine import free_port

from dashboards.store import shipped
from exporter.cli import run
from exporter.cli.exits import Exit
from exporter.grafana import client as grafana_client
from exporter.grafana.publish import State
from exporter.grafana.stamp import NAME

UIDS = list(shipped())
NODE = "efa-pulse-node"

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: str, token: str = EDITOR, address: str | None = None) -> tuple[int, str, str]:
        file = tmp_path / "token"
        file.write_text(token + "\n")
        code = run(["dashboards", *arguments, "--url", address or url, "--token-file", str(file)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def states(cli: Cli, *more: str) -> dict[str, str]:
    return {row["uid"]: row["state"] for row in json.loads(cli("list", "--json", *more)[1])}


def retitle(panel: int = 1, title: str = "mine") -> Callable[[dict[str, Any]], None]:
    def change(dashboard: dict[str, Any]) -> None:
        dashboard["panels"][panel]["title"] = title

    return change


class TestPush:
    """From nothing to up to date, and no further."""

    def test_everything_is_created_in_a_folder_of_its_own(self, cli: Cli, grafana: GrafanaDouble) -> None:
        code, out, _ = cli("push")
        assert (code, out.count("created")) == (Exit.OK, len(UIDS))
        assert grafana.folders == {"efa-pulse": "efa-pulse"}
        assert {one["meta"]["folderUid"] for one in grafana.dashboards.values()} == {"efa-pulse"}
        assert list(grafana.dashboards) == UIDS

    def test_pushing_twice_changes_nothing(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push")
        before, saves = copy.deepcopy(grafana.dashboards), grafana.saves
        grafana.requests.clear()
        code, out, _ = cli("push")
        assert (code, out.count("unchanged")) == (Exit.OK, len(UIDS))
        assert (grafana.dashboards, grafana.saves) == (before, saves)
        assert not [one for one in grafana.requests if not one.startswith("GET")]

    def test_what_grafana_makes_of_its_fields_is_no_change(self, cli: Cli, grafana: GrafanaDouble) -> None:
        grafana.normalises = True
        cli("push")
        assert set(states(cli).values()) == {State.CURRENT.value}
        assert cli("push")[0] == Exit.OK
        assert grafana.saves == len(UIDS)

    def test_versions_that_count_otherwise_are_learned(self, cli: Cli, grafana: GrafanaDouble) -> None:
        grafana.normalises, grafana.step = True, 3
        cli("push")
        saves = grafana.saves
        assert cli("push")[0] == Exit.OK
        assert grafana.saves == saves

    def test_an_outdated_one_of_ours_is_updated(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push", "--runbooks", "https://old.example/runbooks")
        assert set(states(cli).values()) == {State.OUTDATED.value}
        code, out, _ = cli("push")
        assert (code, out.count("updated")) == (Exit.OK, len(UIDS))
        assert set(states(cli).values()) == {State.CURRENT.value}

    def test_another_folder_moves_them(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push")
        assert cli("push", "--folder", "Network", "--folder-uid", "net")[1].count("updated") == len(UIDS)
        assert grafana.folders["net"] == "Network"
        assert {one["meta"]["folderUid"] for one in grafana.dashboards.values()} == {"net"}

    def test_a_folder_that_is_there_is_used_as_it_is(self, cli: Cli, grafana: GrafanaDouble) -> None:
        grafana.folders["efa-pulse"] = "Our fabric"
        cli("push")
        assert grafana.folders == {"efa-pulse": "Our fabric"}

    def test_the_root_needs_no_folder(self, cli: Cli, grafana: GrafanaDouble) -> None:
        assert cli("push", "--folder-uid", "")[0] == Exit.OK
        assert grafana.folders == {}

    def test_a_grafana_below_a_path(self, cli: Cli, grafana: GrafanaDouble, url: str) -> None:
        grafana.prefix = "/monitoring/grafana"
        assert cli("push", address=f"{url}/monitoring/grafana/")[0] == Exit.OK
        assert list(grafana.dashboards) == UIDS

    def test_the_data_source_and_the_runbooks_are_mapped(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push", "--data-source", "AMP", "--runbooks", "https://wiki.example/rb/")
        kept = grafana.dashboards[NODE]["dashboard"]
        variables = {one["name"]: one for one in kept["templating"]["list"]}
        assert variables["datasource"]["current"] == {"selected": True, "text": "AMP", "value": "amp-1"}
        assert variables["datasource"]["query"] == "grafana-amazonprometheus-datasource"
        assert variables["runbooks"]["query"] == "https://wiki.example/rb"
        assert {panel["datasource"]["type"] for panel in kept["panels"] if "datasource" in panel} == {
            "grafana-amazonprometheus-datasource"}
        cli("push", "--data-source", "prom-1")
        assert '"type": "grafana-amazonprometheus-datasource"' not in json.dumps(grafana.dashboards)

    def test_no_field_of_grafana_s_own_is_sent(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push")
        assert all(one["dashboard"]["id"] == 7 for one in grafana.dashboards.values())
        assert all("id" not in one or one["id"] is None for one in shipped().values())
        assert grafana.dashboards[NODE]["meta"]["message"].startswith("efa-pulse ")


class TestForeignEdits:
    """What somebody did in Grafana stays there."""

    def test_an_edit_is_left_alone_and_told(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push", "--runbooks", "https://old.example")
        grafana.edit(NODE, retitle())
        code, out, _ = cli("push")
        assert code == Exit.BAD
        assert (out.count("updated"), out.count("held")) == (len(UIDS) - 1, 1)
        assert "saved by somebody since it was pushed" in " ".join(out.split())
        assert grafana.dashboards[NODE]["dashboard"]["panels"][1]["title"] == "mine"

    def test_force_overwrites_it(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push")
        grafana.edit(NODE, retitle())
        assert cli("push", "--force")[0] == Exit.OK
        assert grafana.dashboards[NODE]["dashboard"]["panels"][1]["title"] != "mine"
        assert set(states(cli).values()) == {State.CURRENT.value}

    def test_a_save_without_a_change_is_no_edit(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push")
        grafana.edit(NODE, lambda _: None)
        assert cli("push")[0] == Exit.OK

    def test_an_edit_that_took_our_stamp_away_is_foreign(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push")

        def change(dashboard: dict[str, Any]) -> None:
            dashboard["templating"]["list"] = [one for one in dashboard["templating"]["list"] if one["name"] != NAME]
            dashboard["title"] = "mine"

        grafana.edit(NODE, change)
        assert states(cli)[NODE] == State.FOREIGN.value
        assert cli("push")[0] == Exit.BAD
        assert grafana.dashboards[NODE]["dashboard"]["title"] == "mine"

    def test_one_that_was_imported_by_hand_and_not_changed_is_taken_over(self, cli: Cli, grafana: GrafanaDouble) -> None:
        grafana.folders["efa-pulse"] = "efa-pulse"
        grafana.dashboards[NODE] = {"dashboard": {**shipped()[NODE], "id": 3, "version": 4}, "meta": {"folderUid": "efa-pulse"}}
        assert cli("push")[0] == Exit.OK
        assert states(cli)[NODE] == State.CURRENT.value

    @pytest.mark.parametrize("more", [(), ("--force",)])
    def test_a_provisioned_one_is_never_saved(self, cli: Cli, grafana: GrafanaDouble, more: tuple[str, ...]) -> None:
        grafana.provision(shipped()[NODE])
        code, out, _ = cli("push", *more)
        assert code == Exit.BAD
        assert "change it there" in " ".join(out.split())
        assert grafana.dashboards[NODE]["dashboard"]["version"] == 1

    def test_a_save_in_the_middle_of_a_push_wins(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push", "--runbooks", "https://old.example")

        def meanwhile(method: str, path: str) -> None:
            if method == "POST" and path.endswith("/dashboards/db") and grafana.dashboards[NODE]["meta"]["updatedBy"] != "ann":
                grafana.edit(NODE, retitle())

        grafana.before = meanwhile
        code, out, _ = cli("push")
        assert (code, out.count("conflict")) == (Exit.BAD, 1)
        assert "nothing was overwritten" in " ".join(out.split())
        assert grafana.dashboards[NODE]["dashboard"]["panels"][1]["title"] == "mine"

    def test_a_title_that_another_one_has_is_a_conflict_of_that_one_only(self, cli: Cli, grafana: GrafanaDouble) -> None:
        grafana.folders["efa-pulse"] = "efa-pulse"
        title = shipped()[NODE]["title"]
        grafana.dashboards["theirs"] = {"dashboard": {"uid": "theirs", "title": title, "version": 1}, "meta": {"folderUid": "efa-pulse"}}
        code, out, _ = cli("push")
        assert (code, out.count("conflict"), out.count("created")) == (Exit.BAD, 1, len(UIDS) - 1)


class TestDryRun:
    """Nothing is written, and what would change is shown."""

    def test_dry_run_and_diff_write_nothing(self, cli: Cli, grafana: GrafanaDouble) -> None:
        for arguments in (("push", "--dry-run"), ("diff",)):
            code, out, _ = cli(*arguments)
            assert (code, out.count("absent")) == (Exit.BAD, len(UIDS))
        assert (grafana.folders, grafana.dashboards) == ({}, {})
        cli("push")
        for arguments in (("push", "--dry-run"), ("diff",)):
            assert cli(*arguments)[:2] == (Exit.OK, "nothing would change\n")

    def test_the_difference_has_the_line(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push")
        old = shipped()[NODE]["panels"][1]["title"]
        grafana.edit(NODE, retitle())
        code, out, _ = cli("diff")
        assert code == Exit.BAD
        lines = out.splitlines()
        assert any(line.startswith("-") and line.strip(" -,") == '"title": "mine"' for line in lines)
        assert any(line.startswith("+") and line.strip(" +,") == f'"title": "{old}"' for line in lines)
        assert NAME not in out

    def test_a_dry_run_says_what_a_push_would_leave_alone(self, cli: Cli, grafana: GrafanaDouble) -> None:
        cli("push")
        grafana.edit(NODE, retitle())
        assert "a push leaves it alone" in cli("push", "--dry-run")[1]


class TestTrouble:
    """One line each: what, where, what to do; and never the token."""

    @pytest.mark.parametrize(("token", "says"), [("glsa_wrong", "does not take the token"), (VIEWER, "Editor on the folder")])
    def test_tokens_without_rights(self, cli: Cli, grafana: GrafanaDouble, token: str, says: str) -> None:
        code, out, err = cli("push", token=token)
        assert code == Exit.USAGE
        assert says in err
        assert token not in out + err
        assert grafana.dashboards == {}

    @pytest.mark.parametrize("token", ["", "two\nlines", "späße", "with space"])
    def test_files_that_hold_no_token(self, cli: Cli, grafana: GrafanaDouble, token: str) -> None:
        code, _, err = cli("push", token=token)
        assert code == Exit.USAGE
        assert len(err.splitlines()) == 1
        assert grafana.requests == []

    def test_a_missing_file(self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["dashboards", "push", "--url", url, "--token-file", str(tmp_path / "none")]) == Exit.USAGE
        assert "cannot be read" in capsys.readouterr().err

    @pytest.mark.parametrize("address", ["grafana:3000", "ftp://grafana", "http://", "http://user:secret@grafana:3000", "http://h:99999",
                                         "http://h/?verify=false"])
    def test_addresses_that_are_none(self, cli: Cli, address: str) -> None:
        code, _, err = cli("push", address=address)
        assert code == Exit.USAGE
        assert "secret" not in err

    def test_nobody_there(self, cli: Cli) -> None:
        code, _, err = cli("push", address=f"http://127.0.0.1:{free_port()}")
        assert code == Exit.UNKNOWN
        assert "cannot be reached" in err

    def test_an_answer_that_does_not_come(self, cli: Cli, grafana: GrafanaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grafana_client.Grafana.__init__, "__kwdefaults__", {"ca_file": None, "timeout": 0.3})
        grafana.before = slow(2.0)
        code, _, err = cli("push")
        assert code == Exit.UNKNOWN
        assert "did not answer within 0.3 s" in err

    @pytest.mark.parametrize("code", [500, 502, 503])
    def test_a_server_in_trouble(self, cli: Cli, grafana: GrafanaDouble, code: int) -> None:
        def fail(*_: str) -> None:
            raise Refused(code, "database is locked")

        grafana.before = fail
        status, _, err = cli("push")
        assert status == Exit.UNKNOWN
        assert str(code) in err
        assert "database is locked" in err

    @pytest.mark.parametrize(("kind", "body"), [
        ("text/html", b"<html>sign in</html>"), ("application/json", b"{"), ("application/json", b"[]"), ("text/plain", b""),
        ("application/json", b'{"dashboard": 1}')])
    def test_a_login_page_or_something_else(self, cli: Cli, grafana: GrafanaDouble, kind: str, body: bytes) -> None:
        grafana.raw = lambda _: (200, kind, body)
        status, _, err = cli("push")
        assert status in (Exit.USAGE, Exit.UNKNOWN)
        assert len(err.splitlines()) == 1
        assert "Traceback" not in err

    def test_a_data_source_that_is_not_there_or_is_none(self, cli: Cli, grafana: GrafanaDouble) -> None:
        assert "is not there" in cli("push", "--data-source", "nobody")[2]
        assert "is of type loki" in cli("push", "--data-source", "Logs")[2]
        assert grafana.dashboards == {}

    def test_a_folder_title_that_another_folder_has(self, cli: Cli, grafana: GrafanaDouble) -> None:
        grafana.folders["other"] = "efa-pulse"
        code, _, err = cli("push")
        assert code == Exit.USAGE
        assert "--folder-uid" in err

    def test_a_broken_push_goes_on_where_it_stopped(self, cli: Cli, grafana: GrafanaDouble) -> None:
        def fail_late(method: str, path: str) -> None:
            if method == "POST" and path.endswith("/dashboards/db") and grafana.saves == 2:
                raise Refused(502, "Bad Gateway")

        grafana.before = fail_late
        assert cli("push")[0] == Exit.UNKNOWN
        grafana.before = lambda *_: None
        code, out, _ = cli("push")
        assert (code, out.count("unchanged"), out.count("created")) == (Exit.OK, 2, len(UIDS) - 2)


class TestWithoutGrafana:
    """Lists and files."""

    def test_list_needs_nobody(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["dashboards", "list", "--json"]) == Exit.OK
        assert [row["uid"] for row in json.loads(capsys.readouterr().out)] == UIDS

    def test_files_can_be_written(self, tmp_path: Path) -> None:
        assert run(["dashboards", "write", str(tmp_path / "a" / "b")]) == Exit.OK
        assert {path.stem: json.loads(path.read_text()) for path in (tmp_path / "a" / "b").iterdir()} == shipped()

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "file").write_text("")
        with contextlib.suppress(SystemExit):
            assert run(["dashboards", "write", str(tmp_path / "file" / "x")]) == Exit.USAGE
        assert "efa-pulse: " in capsys.readouterr().err
