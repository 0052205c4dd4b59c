"""What is around a collective: NCCL's environment, the command of nccl-tests, log files, RAS, parameters."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from probes.nccl import command, ras
from probes.nccl.environ import exclusion, nccl_environment
from probes.nccl.logs import Gatherer, read_facts
from probes.nccl.params import NcclParams

FIXTURES = Path(__file__).parents[3] / "fixtures" / "nccl"
MIB = 1 << 20


class TestEnvironment:
    def test_in_efa_mode_the_network_is_pinned(self) -> None:
        found = nccl_environment(NcclParams(), "efa", Path("/logs"), {}, ["eth0", "lo", "pod-id-link0"])
        assert (found["NCCL_NET"], found["FI_PROVIDER"]) == ("AWS Libfabric", "efa")
        assert found["NCCL_SOCKET_IFNAME"] == "^lo,docker,pod-id-link"

    def test_in_any_mode_nothing_is_pinned_and_the_log_is_kept(self) -> None:
        found = nccl_environment(NcclParams(), "any", Path("/logs"), {}, ["eth0"])
        assert not {"NCCL_NET", "FI_PROVIDER", "NCCL_P2P_DISABLE"} & set(found)
        assert (found["NCCL_DEBUG"], found["NCCL_DEBUG_FILE"]) == ("INFO", "/logs/nccl.%h.%p.log")

    def test_the_network_can_be_forced_inside_a_node(self) -> None:
        found = nccl_environment(NcclParams(force_network=True), "any", Path("/logs"), {}, ["eth0"])
        assert (found["NCCL_P2P_DISABLE"], found["NCCL_SHM_DISABLE"]) == ("1", "1")

    def test_what_the_operator_set_for_interfaces_stays(self) -> None:
        assert "NCCL_SOCKET_IFNAME" not in nccl_environment(NcclParams(), "efa", Path("/logs"), {"NCCL_SOCKET_IFNAME": "ens5"}, ["ens5"])

    def test_nothing_is_excluded_when_nothing_would_be_left(self) -> None:
        assert exclusion(["lo"], ["lo"]) is None
        assert exclusion([], ["eth0"]) is None
        assert exclusion(["lo", "pod-id-link"], ["lo", "eth0"]) == "^lo,pod-id-link"


class TestCommand:
    def build(self, flags: str, **params: object) -> list[str]:
        spec = NcclParams.model_validate({"engine": "nccl-tests", **params})
        program, report = Path("/bin/all_reduce_perf"), Path("/r.json")
        return command.build(program, spec, 256 * MIB, gpus=8, flags=frozenset(flags), seconds=61.5, report=report)

    def test_a_current_version_gets_json_time_out_slowest_rank_and_statistics(self) -> None:
        line = " ".join(self.build("TaIJ"))
        assert line == ("/bin/all_reduce_perf -b 268435456 -e 268435456 -f 2 -g 8 -n 20 -w 5 -c 1 -d float -T 61 -a 3 -I 1 -J /r.json")

    def test_an_old_version_gets_no_option_it_does_not_know(self) -> None:
        assert {"-J", "-I", "-T", "-a"} & set(self.build("")) == set()

    def test_data_type_and_check_follow_the_parameters(self) -> None:
        line = " ".join(self.build("", dtype="bf16", check=False))
        assert "-d bfloat16" in line
        assert "-c 0" in line

    def test_known_flags_are_read_from_the_real_usage(self) -> None:
        flags = command.known_flags((FIXTURES / "usage_exit_0.txt").read_text())
        assert set("bcdefgnwTaIJS") <= flags
        assert "Q" not in flags

    def test_without_a_usage_only_what_every_version_has(self) -> None:
        assert "J" not in command.known_flags("no usage at all")

    def test_a_program_is_found_where_it_is(self, tmp_path: Path) -> None:
        assert command.find_program("alltoall", str(tmp_path)) is None
        (tmp_path / "alltoall_perf").touch()
        assert command.find_program("alltoall", str(tmp_path)) == tmp_path / "alltoall_perf"

    def test_over_several_hosts_by_mpirun(self) -> None:
        line = command.mpirun(["all_reduce_perf", "-g", "1"], ["a", "b"], per_host=8, environ=["NCCL_NET"])
        assert line[:8] == ["mpirun", "--allow-run-as-root", "-np", "16", "-N", "8", "-H", "a:8,b:8"]
        assert line[-5:] == ["-x", "NCCL_NET", "all_reduce_perf", "-g", "1"]


class TestLogs:
    def test_new_lines_are_gathered_once_and_whole(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, gatherer = tmp_path / "nccl.host.1.log", Gatherer(tmp_path)
        gatherer.gather()
        path.write_text("one\ntwo\nthr")
        gatherer.gather()
        with path.open("a") as file:
            file.write("ee\n")
        gatherer.gather()
        gatherer.gather()
        assert capsys.readouterr().err == "one\ntwo\nthree\n"

    def test_facts_of_a_real_run_over_sockets(self, tmp_path: Path) -> None:
        (tmp_path / "nccl.vm.1.log").write_text((FIXTURES / "all_reduce_socket_info.txt").read_text())
        facts = read_facts(tmp_path)
        assert (facts.provider, facts.nics) == (None, None)
        assert "tcp" in facts.says

    def test_facts_of_a_run_over_efa(self, tmp_path: Path) -> None:
        lines = ["NET/OFI Initializing aws-ofi-nccl 1.21.1", "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)"]
        (tmp_path / "nccl.a.1.log").write_text("".join(f"a:1:2 [0] NCCL INFO {line}\n" for line in lines))
        facts = read_facts(tmp_path)
        assert (facts.provider, facts.fabric, facts.nics, facts.versions) == ("efa", "efa-direct", 32, {"aws-ofi-nccl": "1.21.1"})
        assert "efa" in facts.says


class TestRas:
    """The text is what NCCL 2.28.9 answered while one of two ranks was stopped."""

    ANSWER = ("SERVER PROTOCOL 2\nOK\nNCCL version 2.28.9 compiled with CUDA 13.0\n\nJob summary\n===========\n\nErrors\n------\n"
              "\nINCOMPLETE\n  Missing communicator data from 1 job process\n  Process 575 on node 192.0.2.2 managing GPU 1\n\n"
              "Warnings\n--------\n")

    def test_what_is_wrong_is_told(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            asked: list[bytes] = []

            def serve() -> None:
                link, _ = server.accept()
                with link:
                    asked.append(link.recv(1000))
                    link.sendall(self.ANSWER.encode())

            thread = threading.Thread(target=serve)
            thread.start()
            answer = ras.status(server.getsockname()[1])
            thread.join()
        assert answer == "INCOMPLETE\nMissing communicator data from 1 job process\nProcess 575 on node 192.0.2.2 managing GPU 1"
        assert asked[0].endswith(b"STATUS\n")

    def test_nobody_there(self) -> None:
        assert ras.status(ras.free_port(), 0.5) is None

    def test_somebody_who_says_nothing_costs_no_more_than_the_time_given(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert ras.status(server.getsockname()[1], 0.3) is None


class TestParameters:
    def test_the_light_default(self) -> None:
        params = NcclParams()
        assert (params.engine, params.gpus, params.operations) == ("nccl4py", 1, ["all_reduce", "sendrecv"])

    @pytest.mark.parametrize(("spec", "word"), [
        ({"sizes": [3]}, "between 4"), ({"sizes": ["1MiB", 1048576]}, "twice"), ({"operations": ["all_reduce", "all_reduce"]}, "twice"),
        ({"gpus": 0}, "between 1 and 64"), ({"excluded_interfaces": ["^lo"]}, "beginning of an interface"),
        ({"engine": "nccl-tests", "rails": "each"}, "rails need engine nccl4py"), ({"iteration": 3}, "Extra inputs"),
        ({"iterations": 1}, "greater")])
    def test_what_cannot_be_meant_is_refused(self, spec: dict[str, object], word: str) -> None:
        with pytest.raises(ValidationError, match=word):
            NcclParams.model_validate(spec)

    def test_sizes_are_measured_in_rising_order(self) -> None:
        assert NcclParams.model_validate({"sizes": ["256MiB", "1MiB"]}).sizes == [MIB, 256 * MIB]
