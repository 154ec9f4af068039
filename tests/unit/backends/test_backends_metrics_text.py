"""Load from Prometheus text, in the dialects of the servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.metrics_text import LLAMACPP, TGI, TRTLLM, VLLM, Names, read_load
from backends.types import Load

VLLM_TEXT = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b {\\"x\\"}"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75 1712345678901
"""
TGI_TEXT = """# TYPE tgi_queue_size gauge
tgi_queue_size 7
tgi_batch_current_size 5
tgi_batch_current_max_tokens 4000
tgi_batch_max_total_tokens 16000
tgi_request_queue_duration_bucket{le="0.005"} 1
"""
TRTLLM_TEXT = """trtllm_num_requests_running{model_name="undefined",engine_type="undefined"} 6
trtllm_num_requests_waiting{model_name="undefined",engine_type="undefined"} 1
trtllm_kv_cache_utilization{model_name="undefined",engine_type="undefined"} 0.5
"""
LLAMACPP_TEXT = """# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 4
llamacpp:n_busy_slots_per_decode 1.5
"""
ALL = {"vllm": VLLM, "tgi": TGI, "trtllm": TRTLLM, "llamacpp": LLAMACPP}


@pytest.mark.parametrize(
    ("names", "text", "load"),
    [
        (VLLM, VLLM_TEXT, Load(running=5, waiting=4, kv_used=0.75)),
        (TGI, TGI_TEXT, Load(running=5, waiting=7, kv_used=0.25)),
        (TRTLLM, TRTLLM_TEXT, Load(running=6, waiting=1, kv_used=0.5)),
        (LLAMACPP, LLAMACPP_TEXT, Load(running=2, waiting=4, kv_used=None)),
    ],
)
def test_each_dialect(names: Names, text: str, load: Load) -> None:
    assert read_load(text, names) == load
    assert read_load(text.replace("\n", "\r\n"), names) == load


@pytest.mark.parametrize("name", ALL)
def test_another_servers_text_says_nothing(name: str) -> None:
    others = {"vllm": TGI_TEXT, "tgi": TRTLLM_TEXT, "trtllm": LLAMACPP_TEXT, "llamacpp": VLLM_TEXT}
    assert read_load(others[name], ALL[name]) == Load()


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running NaN",
        "vllm:num_requests_running +Inf",
        "vllm:num_requests_running -3",
        "vllm:num_requests_running",
        'vllm:num_requests_running{engine="0"',
        "vllm:num_requests_running many",
        "xvllm:num_requests_running 9",
        "vllm:num_requests_running_total 9",
        "# vllm:num_requests_running 9",
        "<html>",
    ],
)
def test_odd_lines_are_passed_over(line: str) -> None:
    assert read_load(f"{line}\nvllm:num_requests_waiting 1\n", VLLM) == Load(waiting=1)


def test_a_share_stays_a_share() -> None:
    assert read_load("vllm:kv_cache_usage_perc 1.7", VLLM).kv_used == 1.0
    assert read_load("tgi_batch_current_max_tokens 5\ntgi_batch_max_total_tokens 0", TGI).kv_used is None
    assert read_load("tgi_batch_current_max_tokens 9\ntgi_batch_max_total_tokens 3", TGI).kv_used == 1.0
    assert read_load("tgi_batch_current_max_tokens 5", TGI).kv_used is None


@given(st.text(), st.sampled_from(sorted(ALL)))
def test_no_text_raises(text: str, name: str) -> None:
    read_load(text, ALL[name])


@given(st.sampled_from([VLLM_TEXT, TGI_TEXT]), st.integers(0, 700), st.text(max_size=5))
def test_no_damage_raises(text: str, at: int, noise: str) -> None:
    found = read_load(text[:at] + noise + text[at:], VLLM)
    assert found.kv_used is None or 0 <= found.kv_used <= 1
