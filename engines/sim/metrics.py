"""The simulator's counters in the words of vLLM, TGI, TensorRT-LLM and llama.cpp (Prometheus text format 0.0.4)."""

from collections.abc import Iterator, Mapping

from engines.sim.engine import Engine
from engines.sim.options import Options
from engines.sim.stats import Histogram


class _Page:
    """Lines of one exposition; `labels` go on every sample."""

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = dict(labels or {})
        self._lines: list[str] = []

    def one(self, kind: str, name: str, value: float, **labels: str) -> None:
        self._lines += [f"# TYPE {name} {kind}", self._sample(name, value, labels)]

    def gauge(self, name: str, value: float) -> None:
        self.one("gauge", name, value)

    def counter(self, name: str, value: float) -> None:
        self.one("counter", name, value)

    def by(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """A counter with one label."""
        self._lines.append(f"# TYPE {name} counter")
        self._lines += [self._sample(name, value, {label: key}) for key, value in values.items()]

    def histogram(self, name: str, values: Histogram, **labels: str) -> None:
        self._lines.append(f"# TYPE {name} histogram")
        below = 0
        for bound, count in zip((*values.bounds, float("inf")), values.counts, strict=True):
            below += count
            self._lines.append(self._sample(f"{name}_bucket", below, labels | {"le": _number(bound)}))
        self._lines.append(self._sample(f"{name}_sum", values.total, labels))
        self._lines.append(self._sample(f"{name}_count", values.count, labels))

    def text(self) -> str:
        return "\n".join((*self._lines, ""))

    def _sample(self, name: str, value: float, labels: Mapping[str, str]) -> str:
        shown = ",".join(f'{key}="{text}"' for key, text in (self._labels | dict(labels)).items())
        return f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def vllm(engine: Engine, options: Options) -> str:
    """`vllm v1/metrics/loggers.py`; the Prometheus client appends `_total` to counters."""
    stats, page = engine.stats, _Page({"model_name": options.model, "engine": "0"})
    page.gauge("vllm:num_requests_running", engine.running)
    page.gauge("vllm:num_requests_waiting", engine.waiting)
    page.gauge("vllm:kv_cache_usage_perc", engine.scheduler.cache.used)
    page.counter("vllm:prefix_cache_queries_total", stats.prompt_tokens)
    page.counter("vllm:prefix_cache_hits_total", stats.cached_tokens)
    page.counter("vllm:num_preemptions_total", engine.scheduler.preemptions)
    page.counter("vllm:prompt_tokens_total", stats.prompt_tokens)
    page.counter("vllm:prompt_tokens_cached_total", stats.cached_tokens)
    page.counter("vllm:generation_tokens_total", stats.answer_tokens)
    page.by(
        "vllm:request_success_total",
        "finished_reason",
        {**dict.fromkeys(("stop", "length", "abort"), 0), **stats.finished},
    )
    page.histogram("vllm:time_to_first_token_seconds", stats.first_token)
    page.histogram("vllm:request_time_per_output_token_seconds", stats.per_token)
    page.histogram("vllm:request_queue_time_seconds", stats.queued)
    page.histogram("vllm:e2e_request_latency_seconds", stats.duration)
    page.histogram("vllm:request_prompt_tokens", stats.prompt_lengths)
    page.histogram("vllm:request_generation_tokens", stats.answer_lengths)
    page.one(
        "gauge",
        "vllm:cache_config_info",
        1,
        block_size=str(options.block_tokens),
        num_gpu_blocks=str(options.kv_blocks),
    )
    return page.text()


def tgi(engine: Engine, options: Options) -> str:
    """`tgi router/src/server.rs`, `backends/v3`. It has no TTFT, KV-usage or prefix-hit metric."""
    stats, page = engine.stats, _Page()
    size = options.block_tokens
    page.gauge("tgi_queue_size", engine.waiting)
    page.gauge("tgi_batch_current_size", engine.running)
    page.gauge("tgi_batch_current_max_tokens", engine.scheduler.cache.held * size)
    page.gauge("tgi_batch_max_total_tokens", engine.scheduler.cache.capacity * size)
    page.counter("tgi_request_count", stats.requests + sum(stats.failed.values()) - stats.failed["dropped"])
    page.counter("tgi_request_success", sum(stats.finished.values()))
    page.by("tgi_request_failure", "err", stats.failed or {"overloaded": 0})
    page.one("counter", "tgi_batch_inference_count", stats.steps, method="decode")
    page.histogram("tgi_request_duration", stats.duration)
    page.histogram("tgi_request_queue_duration", stats.queued)
    page.histogram("tgi_request_mean_time_per_token_duration", stats.per_token)
    page.histogram("tgi_request_input_length", stats.prompt_lengths)
    page.histogram("tgi_request_generated_tokens", stats.answer_lengths)
    return page.text()


def trtllm(engine: Engine, options: Options) -> str:
    """`tensorrt_llm/metrics/collector.py` at /prometheus/metrics; both labels are the literal `undefined` there."""
    stats, cache = engine.stats, engine.scheduler.cache
    page = _Page({"model_name": "undefined", "engine_type": "undefined"})
    total = stats.reused_blocks + stats.missed_blocks
    page.gauge("trtllm_num_requests_running", engine.running)
    page.gauge("trtllm_num_requests_waiting", engine.waiting)
    page.gauge("trtllm_max_num_active_requests", options.slots)
    page.gauge("trtllm_max_batch_size_static", options.slots)
    page.gauge("trtllm_num_paused_requests", engine.scheduler.preemptions)
    page.gauge("trtllm_kv_cache_utilization", cache.used)
    page.gauge("trtllm_kv_cache_max_blocks", cache.capacity)
    page.gauge("trtllm_kv_cache_free_blocks", cache.capacity - cache.held)
    page.gauge("trtllm_kv_cache_used_blocks", cache.held)
    page.gauge("trtllm_kv_cache_tokens_per_block", cache.block_tokens)
    page.gauge("trtllm_kv_cache_hit_rate", stats.reused_blocks / total if total else 0.0)
    page.counter("trtllm_kv_cache_reused_blocks_total", stats.reused_blocks)
    page.counter("trtllm_kv_cache_missed_blocks_total", stats.missed_blocks)
    page.counter("trtllm_prompt_tokens_total", stats.prompt_tokens)
    page.counter("trtllm_prompt_cached_tokens_total", stats.cached_tokens)
    page.counter("trtllm_generation_tokens_total", stats.answer_tokens)
    page.by(
        "trtllm_request_success_total", "finished_reason", {**dict.fromkeys(("stop", "length"), 0), **stats.finished}
    )
    page.histogram("trtllm_time_to_first_token_seconds", stats.first_token)
    page.histogram("trtllm_time_per_output_token_seconds", stats.per_token)
    page.histogram("trtllm_request_queue_time_seconds", stats.queued)
    page.histogram("trtllm_e2e_request_latency_seconds", stats.duration)
    return page.text()


def llamacpp(engine: Engine, options: Options) -> str:
    """`tools/server/server-task.cpp`, and a real server's page. It has no KV-usage gauge and no histogram."""
    del options
    stats, page = engine.stats, _Page()
    computed = stats.prompt_tokens - stats.cached_tokens
    page.counter("llamacpp:prompt_tokens_total", computed)
    page.counter("llamacpp:prompt_tokens_cached_total", stats.cached_tokens)
    page.counter("llamacpp:prompt_seconds_total", stats.prefill_seconds)
    page.counter("llamacpp:tokens_predicted_total", stats.answer_tokens)
    page.counter("llamacpp:tokens_predicted_seconds_total", stats.decode_seconds)
    page.counter("llamacpp:n_decode_total", stats.steps)
    page.counter("llamacpp:n_tokens_max", stats.longest)
    page.gauge("llamacpp:prompt_tokens_seconds", computed / stats.prefill_seconds if stats.prefill_seconds else 0)
    page.gauge(
        "llamacpp:predicted_tokens_seconds", stats.answer_tokens / stats.decode_seconds if stats.decode_seconds else 0
    )
    page.gauge("llamacpp:requests_processing", engine.running)
    page.gauge("llamacpp:requests_deferred", engine.waiting)
    page.gauge("llamacpp:n_busy_slots_per_decode", stats.busy / stats.steps if stats.steps else 0)
    return page.text()


def slots(engine: Engine, options: Options) -> Iterator[dict[str, object]]:
    """llama.cpp's /slots, the fields that say what each is doing."""
    for index in range(options.slots):
        job = engine.scheduler.running[index] if index < engine.running else None
        yield {
            "id": index,
            "n_ctx": options.longest,
            "speculative": options.tokens_per_step > 1,
            "is_processing": job is not None,
            "n_prompt_tokens": len(job.prompt) if job else 0,
            "n_prompt_tokens_processed": min(job.computed, len(job.prompt)) if job else 0,
            "n_prompt_tokens_cache": (job.hit or 0) if job else 0,
            "next_token": [
                {"has_next_token": job is not None, "n_remain": -1, "n_decoded": job.produced if job else 0}
            ],
        }
