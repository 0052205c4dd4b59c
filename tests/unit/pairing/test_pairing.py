"""Between discovery and the control loop: what a request is told of its pods, visits, what answers teach, gauges."""

from __future__ import annotations

from typing import Any

import pytest
from publishing import canary_verdict

from exporter.config import Config, Job
from exporter.discovery.findings import KINDS
from exporter.discovery.model import Configured, EnginePod, Found
from exporter.inventory.model import Node, Room
from exporter.pairing import Pairing
from exporter.pairing.ratios import Ratios, Sample
from probes.canary.params import CanaryParams
from probes.reasons import Reason
from probes.result import Pd, PdPod

NOW = 1.8e9


def config(**pd: Any) -> Config:
    serving = {"source": {"labels": {"namespace": "llm"}}, **pd.pop("pd", {})}
    return Config.model_validate({"canary": {"targets": [{"name": "chat", "url": "http://gateway:80", "model": "m", "stack": "vllm",
                                                          "pd": serving, **pd}]}})


def engine(name: str, role: Any, node: str, **more: Any) -> EnginePod:
    return EnginePod(name, role, f"http://{name}:8000", f"http://{name}:8000/metrics", f"{name}/0", node, **more)


PODS = (engine("p0", "prefill", "a"), engine("d0", "decode", "b"), engine("d1", "decode", "b"))
NODES = {name: Node(f"i-{name}", name, instance_type="p5.48xlarge", zone="z1", placement_group="g", efa=Room(32)) for name in ("a", "b")}


class World:
    """A pairing over pods that the test says, at a time that the test says."""

    def __init__(self, found: Found | None = None, **options: Any) -> None:
        self.now, self.pods, self.closed = NOW, found or Found(PODS), 0
        world = self

        class Source:
            def found(self) -> Found:
                return world.pods

            def close(self) -> None:
                world.closed += 1

        self.pairing = Pairing(node_of=NODES.get, clock=lambda: self.now, sources=lambda *_: Source())
        self.config = config(**options)
        self.routes = self.pairing.configure(self.config)
        self.pairing.look()

    def due(self) -> Job | None:
        jobs = self.pairing.due(self.now)
        assert len(jobs) <= 1
        return jobs[0] if jobs else None

    def answer(self, job: Job | None, *, route: str = "pair", reason: Reason = Reason.OK, pd: Pd | None = None, **stream: Any) -> list[Any]:
        labels = job.labels if job is not None else {"route": route}
        stream = {"prompt_tokens": 4096, "ttft": 0.4, **stream}
        verdict = canary_verdict("chat", reason=reason, finished=self.now, route=route, prompt="long", pd=pd, labels=labels, **stream)
        return self.pairing.finished(verdict, job)

    def gauges(self) -> dict[str, dict[tuple[str, ...], float]]:
        return {family.name.removeprefix("efapulse_pd_"): samples for family, samples in self.pairing.readings()}


def moved(kv_bytes: int | None = 4096 * 1000, **more: Any) -> Pd:
    return Pd.model_validate({"route": "pair", "disaggregation": "yes", "evidence": "counters", "kv_bytes": kv_bytes, "kv_transfer": 0.05,
                              "prefill": PdPod(role="prefill", pod="p0", running=1, waiting=0, kv_usage=0.5),
                              "decode": PdPod(role="decode", pod="d0"), **more})


def test_a_visit_is_a_whole_canary_to_both_pods() -> None:
    world = World()
    assert world.routes == [("chat", "pair", "long")]
    job = world.due()
    assert job is not None
    params = CanaryParams.model_validate(job.spec)
    assert (params.route, params.url, params.prefill, params.prompt) == ("pair", "http://d0:8000", "http://p0:8000", "long")
    assert params.pd is not None
    assert [(page.pod, page.role, page.zone, page.instance_type, page.placement_group) for page in params.pd.pages] == [
        ("p0", "prefill", "z1", "p5.48xlarge", "g"), ("d0", "decode", "z1", "p5.48xlarge", "g")]
    assert (params.pd.first_contact, params.pd.provenance, params.pd.complete) == (True, False, True)
    assert (job.labels["route"], job.labels["first_contact"]) == ("pair", "true")
    assert "canary/chat" in job.lanes, "one request at a time goes to a target, visits included"
    assert params.longest < job.deadline


def test_one_visit_at_a_time() -> None:
    world = World()
    job = world.due()
    assert job is not None
    assert world.due() is None
    assert world.pairing.knows(job)
    world.answer(job, pd=moved())
    assert not world.pairing.knows(job)
    assert world.due() is None, "not before its time"
    world.now += 1800
    second = world.due()
    assert second is not None
    assert second.labels["decode"] == "d1", "the pod that nobody has visited"


def test_a_visit_that_was_left_out_comes_again() -> None:
    world = World()
    job = world.due()
    assert job is not None
    world.pairing.left_out(job)
    world.now += 1800
    assert world.due() is not None


@pytest.mark.parametrize("options", [{"stack": "openai"}, {"stack": "ray-serve"}, {"pd": {"pairs": False}}, {"enabled": False}])
def test_no_visits_where_there_are_no_pairs(options: dict[str, Any]) -> None:
    assert World(**options).due() is None


def test_a_router_request_is_told_of_every_page() -> None:
    world = World(pd={"router_metrics": ["http://smg:29000/metrics"], "picker_metrics": ["http://epp:9090/metrics"],
                      "min_prompt_tokens": 512})
    job = next(job for job in world.config.jobs() if job.probe == "canary")
    params = CanaryParams.model_validate(world.pairing.prepare(job, job.spec))
    assert params.pd is not None
    assert [(page.pod, page.role) for page in params.pd.pages] == [("p0", "prefill"), ("d0", "decode"), ("d1", "decode"),
                                                                   ("router-0", "router"), ("epp-0", "epp")]
    assert params.pd.complete
    assert params.pd.min_prompt_tokens == 512


def test_what_is_not_all_there_is_says_so() -> None:
    for found in (Found(PODS, trouble="more than"), Found((*PODS, EnginePod("x", "decode", "", "", "x")))):
        world = World(found)
        job = next(job for job in world.config.jobs() if job.probe == "canary")
        params = CanaryParams.model_validate(world.pairing.prepare(job, job.spec))
        assert params.pd is not None
        assert not params.pd.complete


def test_before_anything_was_seen_a_request_is_sent_as_it_is() -> None:
    world = World(Found(seen=False))
    job = next(job for job in world.config.jobs() if job.probe == "canary")
    assert world.pairing.prepare(job, job.spec) == job.spec
    assert world.due() is None


def test_more_pods_than_a_request_can_read() -> None:
    pods = tuple(engine(f"d{i}", "decode", "a") for i in range(90))
    world = World(Found(pods))
    job = next(job for job in world.config.jobs() if job.probe == "canary")
    params = CanaryParams.model_validate(world.pairing.prepare(job, job.spec))
    assert params.pd is not None
    assert (len(params.pd.pages), params.pd.complete) == (64, False)


def test_the_baseline_is_a_decode_pod_alone_in_turn() -> None:
    world = World(pd={"baseline": {"decode": True}})
    job = next(job for job in world.config.jobs() if job.labels.get("route") == "baseline")
    urls = {CanaryParams.model_validate(world.pairing.prepare(job, job.spec)).url for _ in range(4)}
    assert urls == {"http://d0:8000", "http://d1:8000"}
    world.pods = Found((engine("d0", "decode", "b", ready=False),))
    world.pairing.look()
    with pytest.raises(RuntimeError, match="no decode pod of chat is ready"):
        world.pairing.prepare(job, job.spec)


def test_a_baseline_elsewhere_is_a_job_of_its_own() -> None:
    jobs = {job.id: job for job in config(pd={"baseline": {"url": "http://plain:8000"}}).jobs() if job.probe == "canary"}
    assert set(jobs) == {"canary/chat/short", "canary/chat/long", "canary/chat/short/baseline", "canary/chat/long/baseline"}
    params = CanaryParams.model_validate(jobs["canary/chat/long/baseline"].spec)
    assert (params.route, params.stack, params.url) == ("baseline", "openai", "http://plain:8000")


def test_provenance_is_tested_on_first_contact_only() -> None:
    world = World(Found(PODS[:2]), pd={"provenance": True})
    job = world.due()
    assert job is not None
    params = CanaryParams.model_validate(job.spec)
    assert params.pd is not None
    assert (params.pd.provenance, params.cache_salt) == (True, True)
    assert params.longest < job.deadline
    world.answer(job, pd=moved(), token_events=8)
    world.now += 1800
    again = world.due()
    assert again is not None
    assert again.spec["pd"].get("provenance") is None


def test_a_shared_store_is_told_so_that_provenance_is_refused() -> None:
    store = engine("p0", "prefill", "a", configured=Configured("vllm", "prefill", "nixl", "UCX", shared_store=True))
    job = World(Found((store, PODS[1])), pd={"provenance": True}).due()
    assert job is not None
    assert job.spec["pd"]["shared_store"] is True


def test_bytes_are_learned_from_two_lengths_and_expected_of_the_next_request() -> None:
    world = World()
    world.answer(None, route="router", pd=moved(32 * 1000 + 500), prompt_tokens=32)
    assert "kv_bytes_per_token" in world.gauges()
    assert world.gauges()["kv_bytes_per_token"] == {}
    world.answer(None, route="router", pd=moved(4096 * 1000 + 500), prompt_tokens=4096)
    assert world.gauges()["kv_bytes_per_token"] == {("chat",): 1000.0}
    job = world.due()
    assert job is not None
    assert job.spec["pd"]["learned"] == {"slope": 1000.0, "constant": 500.0}


def test_what_moved_nothing_teaches_nothing() -> None:
    world = World()
    for tokens in (32, 4096):
        world.answer(None, route="router", pd=moved(tokens * 1000, disaggregation="no"), prompt_tokens=tokens)
        world.answer(None, route="router", pd=moved(None), prompt_tokens=tokens)
    assert world.gauges()["kv_bytes_per_token"] == {}


def test_the_gauges_of_pods() -> None:
    world = World()
    job = world.due()
    world.answer(job, pd=moved(), ttft=0.4, tpot=0.02)
    gauges = world.gauges()
    assert gauges["pods"] == {("chat", "prefill"): 1, ("chat", "decode"): 2}
    assert gauges["pod_ttft_seconds"] == {("chat", "prefill", "p0"): 0.4, ("chat", "decode", "d0"): 0.4}
    assert gauges["pod_kv_transfer_seconds"] == {("chat", "prefill", "p0"): 0.05, ("chat", "decode", "d0"): 0.05}
    assert gauges["pod_last_success_timestamp_seconds"] == {("chat", "prefill", "p0"): NOW, ("chat", "decode", "d0"): NOW}
    assert gauges["pod_running_requests"] == {("chat", "prefill", "p0"): 1}
    assert gauges["pod_kv_fill_ratio"] == {("chat", "prefill", "p0"): 0.5}
    assert gauges["pod_coverage_ratio"] == {("chat", "prefill"): 1, ("chat", "decode"): 1}
    assert gauges["findings"] == {("chat", kind): 0 for kind in KINDS}


def test_a_failed_request_moves_no_figure_but_the_state_beside_it() -> None:
    world = World()
    world.answer(world.due(), reason=Reason.TIMEOUT_STALL, pd=moved())
    assert world.gauges()["pod_ttft_seconds"] == {}
    assert world.gauges()["pod_running_requests"] != {}


def test_pods_that_left_take_their_series_along() -> None:
    world = World()
    world.answer(world.due(), pd=moved())
    world.pods = Found((engine("p1", "prefill", "a"),))
    world.pairing.look()
    world.due()
    assert world.gauges()["pod_ttft_seconds"] == {}
    assert world.gauges()["findings"]["chat", "no_pods"] == 1


def test_the_transport_of_kv_stands_until_another_one_is_proven() -> None:
    world = World()

    def tell(transport: str) -> None:
        world.pairing.finished(canary_verdict("chat", route="pair", pd=moved(), transport=transport), None)

    tell("efa_rdma")
    tell("indeterminate")
    assert world.gauges()["transport"] == {("chat", "efa_rdma"): 1}
    tell("tcp")
    assert world.gauges()["transport"] == {("chat", "tcp"): 1, ("chat", "efa_rdma"): 0}


def test_an_engine_without_its_metrics_or_of_another_role_is_a_finding() -> None:
    world = World()
    world.answer(world.due(), pd=moved(disaggregation="unknown", decode=PdPod(role="decode", pod="d0", engine_role="unified",
                                                                               missing=["vllm:prompt_tokens_by_source_total"])))
    findings = world.gauges()["findings"]
    assert (findings["chat", "metrics_missing"], findings["chat", "role_mismatch"]) == (1, 1)


# starts and warm-up


def test_the_first_good_answer_after_a_start_is_timed_once() -> None:
    cold = engine("p0", "prefill", "a", started=NOW + 10)
    warm = engine("d0", "decode", "b", started=NOW + 20, restarts=2)
    world = World(Found((cold, warm)))
    world.now = NOW + 430
    job = world.due()
    assert job is not None
    assert job.labels["warmup"] == "true"
    assert world.answer(job, reason=Reason.TIMEOUT_FIRST_TOKEN) == []
    world.now += 1800
    starts = world.answer(world.due(), pd=moved())
    assert [(start.role, start.cold, start.seconds) for start in starts] == [("prefill", True, 2220), ("decode", False, 2210)]
    world.now += 1800
    later = world.due()
    assert later is not None
    assert "warmup" not in later.labels
    assert world.answer(later, pd=moved()) == []


def test_a_pod_that_never_answers_is_no_longer_warming_after_its_grace() -> None:
    world = World(Found((engine("p0", "prefill", "a", started=NOW - 3600), PODS[1])))
    job = world.due()
    assert job is not None
    assert "warmup" not in job.labels


def test_a_start_that_was_not_watched_is_not_timed() -> None:
    world = World(Found((engine("p0", "prefill", "a", started=NOW - 60), PODS[1])))
    assert world.answer(world.due(), pd=moved()) == []


# configuration


def test_a_reload_keeps_what_is_known_where_the_pods_are_found_alike() -> None:
    world = World()
    world.answer(world.due(), pd=moved())
    world.pairing.configure(config(prompts={"long": {"schedule": {"interval": "20m"}}}))
    assert world.gauges()["pod_ttft_seconds"] != {}
    assert world.closed == 0
    world.pairing.configure(config(pd={"pod_interval": "1h"}))
    assert world.gauges()["pod_ttft_seconds"] == {}
    assert world.closed == 1
    world.pairing.configure(Config())
    assert world.closed == 2
    assert all(samples == {} for samples in world.gauges().values())


def test_a_source_that_fails_blinds_nobody_else() -> None:
    class Broken:
        def found(self) -> Found:
            raise ZeroDivisionError

        def close(self) -> None:
            pass

    pairing = Pairing(sources=lambda *_: Broken())
    pairing.configure(config())
    pairing.look()
    assert pairing.due(NOW) == []


def test_without_a_cluster_the_pods_of_one_are_not_looked_for() -> None:
    pairing = Pairing()
    pairing.configure(config())
    pairing.look()
    assert pairing.due(NOW) == []
    pairing.start()
    pairing.close()


# ratios


def sample(at: float, **figures: float) -> Sample:
    return Sample(at, figures)


def test_a_ratio_is_of_interleaved_samples_only() -> None:
    ratios = Ratios(least=3, within=120)
    for step in range(5):
        ratios.add("long", sample(600 * step, ttft=2.0, tpot=0.02), baseline=False)
        ratios.add("long", sample(600 * step + 60, ttft=1.0, tpot=0.04), baseline=True)
    assert ratios.best() == {"ttft": 2.0, "tpot": 0.5}
    apart = Ratios(least=3, within=120)
    for step in range(5):
        apart.add("long", sample(step, ttft=2.0), baseline=False)
        apart.add("long", sample(10_000 + step, ttft=1.0), baseline=True)
    assert apart.best() == {}, "a run of one and then a run of the other compare two different hours"


def test_a_ratio_needs_enough_samples_each_used_once() -> None:
    ratios = Ratios(least=3, within=120)
    for step in range(3):
        ratios.add("short", sample(step, ttft=1.0), baseline=True)
    ratios.add("short", sample(1, ttft=3.0), baseline=False)
    assert ratios.best() == {}
    for step in range(2):
        ratios.add("short", sample(step, ttft=3.0), baseline=False)
    assert ratios.best() == {"ttft": 3.0}


def test_one_outlier_moves_no_ratio() -> None:
    ratios = Ratios(least=3, within=120)
    for step, ttft in enumerate((1.0, 1.1, 0.9, 50.0, 1.0)):
        ratios.add("long", sample(step * 60, ttft=ttft), baseline=False)
        ratios.add("long", sample(step * 60 + 1, ttft=1.0), baseline=True)
    assert ratios.best()["ttft"] == pytest.approx(1.0)


def test_the_ratio_of_a_target_comes_from_router_and_baseline() -> None:
    world = World(pd={"baseline": {"url": "http://plain:8000", "samples": 3}})
    for _ in range(3):
        world.now += 600
        world.answer(None, route="router", pd=None, ttft=2.0, tpot=0.02, output_tokens_per_second=50.0)
        world.now += 5
        world.answer(None, route="baseline", pd=Pd(route="baseline"), ttft=1.0, tpot=0.02, output_tokens_per_second=50.0)
    assert world.gauges()["to_baseline_ratio"] == {("chat", "ttft"): 2.0, ("chat", "tpot"): 1.0,
                                                   ("chat", "output_tokens_per_second"): 1.0}


