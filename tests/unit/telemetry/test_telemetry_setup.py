"""Telemetry as a whole: opened, told, read, closed; and what a process says of itself."""

import asyncio
import subprocess
import sys
import threading

import pytest

from telemetry import names
from telemetry.process import cpu_seconds, resident_bytes, watch_loop
from telemetry.setup import open_telemetry
from tests.support.telemetry import PROMPT, Clock, a_record, read_exposition, sample

NOW = 1_700_000_000.0


def test_one_call_counts_logs_and_keeps_the_window(caplog):
    with caplog.at_level("INFO"), open_telemetry(now=lambda: NOW) as telemetry:
        telemetry.request(a_record(), telemetry.tracer.begin())
        telemetry.request(a_record())
        samples, _ = read_exposition(telemetry.exposition().decode())
        assert telemetry.window.snapshot(NOW).minute.pools["small"].count == 2
    labels = {
        "gen_ai_operation_name": "chat",
        "turnout_pool": "small",
        "turnout_caller": "dev",
        "turnout_outcome": "ok",
        "http_response_status_code": "200",
    }
    assert sample(samples, "turnout_requests_total", **labels) == 2
    assert [record.name for record in caplog.records] == ["turnout.access"] * 2


def test_throughput_of_the_system_and_of_a_user_are_exposed():
    clock = Clock(NOW)
    with open_telemetry(now=clock) as telemetry:
        clock.at += 10
        for _ in range(30):
            telemetry.request(a_record(completion_tokens=20, tpot=0.02))
        clock.at += 10
        samples, _ = read_exposition(telemetry.exposition().decode())
    assert sample(samples, "turnout_tokens_system_per_second", turnout_pool="small") == pytest.approx(30.0)
    assert sample(samples, "turnout_tokens_user_per_second", turnout_pool="small") == pytest.approx(50.0, rel=0.07)


def test_the_process_tells_of_itself():
    with open_telemetry(service="turnout", instance="gateway-7") as telemetry:
        samples, _ = read_exposition(telemetry.exposition().decode())
    [target] = [dict(labels) for name, labels in samples if name == "target_info"]
    assert target["service_name"] == "turnout"
    assert target["service_instance_id"] == "gateway-7"
    assert target["service_version"]
    assert sample(samples, "process_cpu_time_seconds_total") > 0
    assert sample(samples, "process_memory_usage_bytes") > 10**6
    assert cpu_seconds() > 0
    assert resident_bytes() > 10**6


def test_without_an_endpoint_there_is_no_thread_and_no_span():
    before = set(threading.enumerate())
    with open_telemetry(sample=1.0) as telemetry:
        assert set(threading.enumerate()) == before
        assert not telemetry.tracer.begin().context.sampled


def test_without_an_endpoint_the_exporters_are_not_even_imported():
    program = "import sys, telemetry.setup as s\nwith s.open_telemetry() as t: t.exposition()\nprint([m for m in sys.modules if 'exporter' in m or 'requests' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_prompt_text_in_metrics_or_logs(caplog):
    """A record has no place for it; what a client names freely (a model) is kept out when it is not known."""
    with caplog.at_level("DEBUG"), open_telemetry(now=lambda: NOW) as telemetry:
        telemetry.request(a_record(model=PROMPT, pool="", status=404, outcome="error", error="model_not_found"))
        assert PROMPT not in telemetry.exposition().decode()
        telemetry.request(a_record(model="m" * 300 + PROMPT))
        assert PROMPT not in telemetry.exposition().decode()


async def test_a_loop_that_is_held_up_is_told():
    lags, clock = [], asyncio.get_running_loop().time
    task = asyncio.create_task(watch_loop(lags.append, clock, interval=0.001))
    await asyncio.sleep(0.01)
    held = clock()
    while clock() - held < 0.05:
        pass
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert min(lags) >= 0
    assert max(lags) > 0.03


def test_every_gauge_can_be_watched():
    with open_telemetry() as telemetry:
        for metric in names.METRICS:
            if metric.kind == "gauge":
                telemetry.instruments.watch(metric, lambda metric=metric: {("x",) * len(metric.labels): 1.5})
        samples, kinds = read_exposition(telemetry.exposition().decode())
    gauges = {metric.prometheus for metric in names.METRICS if metric.kind == "gauge"}
    assert {name for name, _ in samples if name in gauges} == gauges
    assert all(kinds[name] == "gauge" for name in gauges)
