from array import array

import pytest

from engines.sim import metrics
from engines.sim.cache import PagedCache
from engines.sim.engine import Engine
from engines.sim.options import Options
from engines.sim.scheduler import Job, Scheduler, Speed
from engines.sim.stats import Histogram, Stats

PAGES = {"vllm": metrics.vllm, "tgi": metrics.tgi, "trtllm": metrics.trtllm, "llamacpp": metrics.llamacpp}


def engine(**speed):
    return Engine(Scheduler(Speed(**speed), PagedCache(16, 4)), Stats(), lambda: 0.0)


def samples(page):
    """Name with labels -> value; fails on a line that is not of the format."""
    found = {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in {"counter", "gauge", "histogram"}
            assert name not in found
            continue
        name, value = line.rsplit(" ", 1)
        assert name not in found
        found[name] = float(value)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_an_idle_page_is_well_formed(name):
    assert samples(PAGES[name](engine(), Options()))


def loaded():
    one = engine(slots=1)
    for first in (0, 100):
        one.scheduler.submit(Job(array("I", range(first, first + 8)), array("I", [1, 2])))
    one.scheduler.plan()
    one.stats.prompt_tokens, one.stats.cached_tokens, one.stats.answer_tokens = 40, 16, 9
    one.stats.reused_blocks, one.stats.missed_blocks = 4, 6
    return one


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "vllm",
            {
                'vllm:num_requests_running{model_name="sim",engine="0"}': 1,
                'vllm:num_requests_waiting{model_name="sim",engine="0"}': 1,
                'vllm:kv_cache_usage_perc{model_name="sim",engine="0"}': 2 / 16,
                'vllm:prefix_cache_queries_total{model_name="sim",engine="0"}': 40,
                'vllm:prefix_cache_hits_total{model_name="sim",engine="0"}': 16,
                'vllm:generation_tokens_total{model_name="sim",engine="0"}': 9,
            },
        ),
        (
            "tgi",
            {
                "tgi_batch_current_size": 1,
                "tgi_queue_size": 1,
                "tgi_batch_current_max_tokens": 8,
                "tgi_batch_max_total_tokens": 64,
            },
        ),
        (
            "trtllm",
            {
                'trtllm_num_requests_running{model_name="undefined",engine_type="undefined"}': 1,
                'trtllm_num_requests_waiting{model_name="undefined",engine_type="undefined"}': 1,
                'trtllm_kv_cache_utilization{model_name="undefined",engine_type="undefined"}': 2 / 16,
                'trtllm_kv_cache_hit_rate{model_name="undefined",engine_type="undefined"}': 0.4,
            },
        ),
        (
            "llamacpp",
            {
                "llamacpp:requests_processing": 1,
                "llamacpp:requests_deferred": 1,
                "llamacpp:prompt_tokens_total": 24,
                "llamacpp:prompt_tokens_cached_total": 16,
                "llamacpp:tokens_predicted_total": 9,
            },
        ),
    ],
)
def test_load_in_each_engine_s_words(name, wanted):
    options = Options(block_tokens=4) if name == "tgi" else Options()
    found = samples(PAGES[name](loaded(), options))
    assert {key: found[key] for key in wanted} == pytest.approx(wanted)


def test_histograms_are_cumulative():
    one = engine()
    for value in (0.002, 0.03, 0.03, 200.0):
        one.stats.queued.add(value)
    found = samples(metrics.tgi(one, Options()))
    assert found['tgi_request_queue_duration_bucket{le="0.001"}'] == 0
    assert found['tgi_request_queue_duration_bucket{le="0.005"}'] == 1
    assert found['tgi_request_queue_duration_bucket{le="0.04"}'] == 3
    assert found['tgi_request_queue_duration_bucket{le="80"}'] == 3
    assert found['tgi_request_queue_duration_bucket{le="+Inf"}'] == 4
    assert found["tgi_request_queue_duration_count"] == 4
    assert found["tgi_request_queue_duration_sum"] == pytest.approx(200.062)


def test_a_value_on_a_bound_is_below_it():
    histogram = Histogram((1.0, 2.0))
    histogram.add(1.0)
    assert histogram.counts == [1, 0, 0]


def test_slots_show_what_runs():
    first, *rest = metrics.slots(loaded(), Options(slots=3))
    assert first["is_processing"]
    assert first["n_prompt_tokens"] == 8
    assert [one["is_processing"] for one in rest] == [False, False]
