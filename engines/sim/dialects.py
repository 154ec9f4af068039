"""How each engine words its answers, chunks and errors. Sources: the engines' own servers, see each function."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engines.sim.options import DialectName


class Dialect(msgspec.Struct, frozen=True):
    """What sets one engine's HTTP face apart."""

    name: DialectName
    owner: str  # of the model in /v1/models
    role_chunk: bool = True  # a stream begins with a chunk that has only a role
    role_content: str | None = ""  # the content beside that role
    role_everywhere: bool = False  # each delta names the role again
    finish_apart: bool = False  # the finish_reason comes on a chunk of its own, with an empty delta
    cached: bool = True  # usage says how many prompt tokens were cached
    timings: bool = False  # llama.cpp's `timings` and `prompt_progress`
    closes_after_stream: bool = False
    strict: bool = False  # unknown request keys are refused
    reserve: bool = True  # room for the whole answer is taken at the start
    max_total: int | None = None  # requests running and waiting before overload is answered; None: never
    overload_status: int = 503
    invalid_status: int = 400


DIALECTS: Final[Mapping[DialectName, Dialect]] = {
    # vLLM 0.33: preempts; never refuses for load unless told to.
    "vllm": Dialect("vllm", "vllm", reserve=False),
    # TGI 3.3: a semaphore of 128 requests; no usage details.
    "tgi": Dialect(
        "tgi",
        "",
        role_chunk=False,
        role_everywhere=True,
        cached=False,
        max_total=128,
        overload_status=429,
        invalid_status=422,
    ),
    # trtllm-serve: GUARANTEED_NO_EVICT; refuses keys it does not know.
    "trtllm": Dialect("trtllm", "tensorrt_llm", strict=True),
    # llama-server, from answers of a real one; it closes the connection after each streamed answer.
    "llamacpp": Dialect(
        "llamacpp", "llamacpp", role_content=None, finish_apart=True, timings=True, closes_after_stream=True
    ),
}

# trtllm-serve's chat and completion requests (openai_protocol.py); everything else is "extra", hence refused.
TRTLLM_KEYS: Final = frozenset(
    """
    messages prompt model frequency_penalty logit_bias logprobs top_logprobs max_completion_tokens max_tokens n
    presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice
    parallel_tool_calls user reasoning_effort thinking thinking_token_budget prompt_ignore_length best_of
    use_beam_search top_k top_p_min min_p repetition_penalty length_penalty early_stopping stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens lora_request echo add_generation_prompt add_special_tokens documents chat_template
    chat_template_kwargs media_io_kwargs mm_processor_kwargs disaggregated_params conversation_params cache_salt
    priority agent_hierarchy detokenize input encoding_format dimensions
    """.split()  # noqa: SIM905  readable
)


class Refused(Exception):
    """The request gets an error for an answer. `kind` is one of KINDS; `extra` joins llama.cpp's error object."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.param = param
        self.retry_after = retry_after
        self.extra = extra or {}


# kind -> status (0: the dialect's own), then the type's name in vLLM, TGI, TensorRT-LLM and llama.cpp
KINDS: Final[Mapping[str, tuple[int, str, str, str, str]]] = {
    "invalid": (0, "BadRequestError", "validation", "BadRequestError", "invalid_request_error"),
    "schema": (0, "BadRequestError", "validation", "schema", "invalid_request_error"),
    "too_long": (0, "BadRequestError", "validation", "BadRequestError", "exceed_context_size_error"),
    "key": (401, "Unauthorized", "authentication", "Unauthorized", "authentication_error"),
    "not_found": (404, "NotFoundError", "not_found", "NotFoundError", "not_found_error"),
    "model": (404, "NotFoundError", "not_found", "NotFoundError", "not_found_error"),
    "unsupported": (501, "BadRequestError", "validation", "BadRequestError", "not_supported_error"),
    "overloaded": (503, "ServiceUnavailableError", "overloaded", "ServiceUnavailableError", "unavailable_error"),
    "loading": (503, "ServiceUnavailableError", "healthcheck", "ServiceUnavailableError", "unavailable_error"),
    "internal": (500, "InternalServerError", "generation", "InternalServerError", "server_error"),
}


def status_of(dialect: Dialect, refused: Refused) -> int:
    if refused.status is not None:
        return refused.status
    if refused.kind == "overloaded":
        return dialect.overload_status
    return KINDS[refused.kind][0] or dialect.invalid_status


def error_body(dialect: Dialect, refused: Refused) -> dict[str, Any]:
    """The JSON of an error, in the engine's own shape (they are four different ones)."""
    _, vllm, tgi, trtllm, llamacpp = KINDS[refused.kind]
    status, message = status_of(dialect, refused), str(refused)
    match dialect.name:
        case "vllm":
            return {"error": {"message": message, "type": vllm, "param": refused.param, "code": status}}
        case "tgi":
            return {"error": message, "error_type": tgi}
        case "trtllm":
            if trtllm == "schema":
                return {"error": message}
            return {"object": "error", "message": message, "type": trtllm, "param": refused.param, "code": status}
        case "llamacpp":
            return {"error": {"code": status, "message": message, "type": llamacpp, **refused.extra}}


def stream_error(dialect: Dialect, message: str) -> dict[str, Any]:
    """The event by which an engine says that an answer under way has failed."""
    if dialect.name == "tgi":  # whatever the cause (infer/mod.rs)
        return {"error": {"message": message, "http_status_code": 422}}
    return error_body(dialect, Refused("internal", message))


class Told(msgspec.Struct, frozen=True):
    """What an engine tells of a finished request: tokens, and seconds from its own clock."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prompt_seconds: float = 0.0
    answer_seconds: float = 0.0


def usage(dialect: Dialect, told: Told) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "prompt_tokens": told.prompt_tokens,
        "total_tokens": told.prompt_tokens + told.completion_tokens,
        "completion_tokens": told.completion_tokens,
    }
    if dialect.cached:
        counts["prompt_tokens_details"] = {"cached_tokens": told.cached_tokens}
    return counts


def timings(told: Told) -> dict[str, Any]:
    """llama.cpp's own measure of a request; milliseconds and tokens a second."""
    computed = told.prompt_tokens - told.cached_tokens
    prompt_ms, answer_ms = max(told.prompt_seconds * 1000, 0.001), max(told.answer_seconds * 1000, 0.001)
    return {
        "cache_n": told.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(computed, 1),
        "prompt_per_second": computed / prompt_ms * 1000,
        "predicted_n": told.completion_tokens,
        "predicted_ms": answer_ms,
        "predicted_per_token_ms": answer_ms / max(told.completion_tokens, 1),
        "predicted_per_second": told.completion_tokens / answer_ms * 1000,
    }


class Frames:
    """The JSON objects of one answer: chunks of a stream, or the whole."""

    def __init__(self, dialect: Dialect, *, chat: bool, number: int, created: int, model: str) -> None:
        self.dialect = dialect
        self.chat = chat
        self._base: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-sim{number}",
            "created": created,
            "model": model,
        }
        if dialect.name in {"tgi", "llamacpp"}:
            self._base["system_fingerprint"] = "sim"

    def chunk(self, index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        """One event of a stream; for completions the delta's content is the text."""
        if not self.chat:
            choice: dict[str, Any] = {
                "index": index,
                "text": delta.get("content") or "",
                "logprobs": None,
                "finish_reason": finish,
            }
            return {**self._base, "object": "text_completion", "choices": [choice]}
        if self.dialect.role_everywhere:
            delta = {"role": "assistant", **delta}
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        if self.dialect.name != "llamacpp":
            choice["logprobs"] = None
        return {**self._base, "object": "chat.completion.chunk", "choices": [choice]}

    def role(self, index: int, content: str | None) -> dict[str, Any]:
        return self.chunk(index, {"role": "assistant", "content": content})

    def progress(self, *, total: int, cached: int, processed: int, milliseconds: float) -> dict[str, Any]:
        """llama.cpp's `prompt_progress`, one for each batch of the prompt."""
        told = {"total": total, "cache": cached, "processed": processed, "time_ms": round(milliseconds)}
        return {**self.role(0, None), "prompt_progress": told}

    def usage(self, told: Told) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        frame: dict[str, Any] = {**self._base, "object": kind, "choices": [], "usage": usage(self.dialect, told)}
        return frame | {"timings": timings(told)} if self.dialect.timings else frame

    def whole(self, choices: list[dict[str, Any]], told: Told) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        body = {**self._base, "object": kind, "choices": choices, "usage": usage(self.dialect, told)}
        return body | {"timings": timings(told)} if self.dialect.timings else body
