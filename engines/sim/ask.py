"""What a client asked for, read from its JSON and planned to the last token before anything is computed."""

from array import array
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from engines.sim import text
from engines.sim.dialects import TRTLLM_KEYS, Dialect, Refused
from engines.sim.options import Options
from engines.sim.text import Tokens

NATURAL_LENGTH = 128  # tokens of an answer for which nobody gave a limit

Prompt = str | list[str | int | list[int]]  # a text, token ids, or a list of either


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: Prompt | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    seed: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | int | None = None
    return_progress: bool | None = None
    sim_reasoning: int = 0  # so many tokens are reasoning_content before the answer
    sim_tools: int = 0  # so many tool calls, whatever tool_choice says


class Piece(msgspec.Struct, frozen=True):
    """One token of an answer."""

    text: str
    kind: Literal["content", "reasoning", "tool"] = "content"
    call: int = 0  # which tool call
    name: str = ""  # of the function, on the first piece of a call


class Choice(msgspec.Struct, frozen=True):
    prompt: Tokens
    pieces: tuple[Piece, ...]
    finish: str
    repeated: bool = False  # another choice of the same request has the same prompt

    @property
    def output(self) -> Tokens:
        """Token ids: only their number and their sameness matter."""
        return array(
            "I", [token for piece in self.pieces for token in (text.tokenize(piece.text) or array("I", [0]))[:1]]
        )


class Ask(msgspec.Struct, frozen=True):
    chat: bool
    choices: tuple[Choice, ...]
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    progress: bool = False

    @property
    def prompt_tokens(self) -> int:
        return sum(len(choice.prompt) for choice in self.choices if not choice.repeated)


def decode(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises Refused."""
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise Refused("schema", f"The body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused("schema", "The body is not a JSON object.")
    return cast("dict[str, Any]", body)


def read(body: dict[str, Any], dialect: Dialect, options: Options, *, chat: bool) -> Ask:
    """Raises Refused with what the engine would say."""
    if dialect.strict:
        unknown = [key for key in body if key not in TRTLLM_KEYS and not key.startswith("sim_")]
        if unknown:
            raise Refused("schema", f"body.{unknown[0]}: Extra inputs are not permitted")
    try:
        fields = msgspec.convert(body, _Body)
    except msgspec.ValidationError as error:
        raise Refused("schema", str(error)) from error
    _check(fields, dialect, options, chat=chat)
    count = fields.n or 1
    choices = tuple(
        _choice(fields, prompt, index, dialect, options, repeated=index > 0)
        for prompt in _prompts(fields, chat=chat)
        for index in range(count)
    )
    return Ask(
        chat=chat,
        choices=choices,
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        logprobs=bool(fields.logprobs),
        progress=bool(fields.return_progress) and dialect.timings and chat,
    )


def check_model(asked: str | None, dialect: Dialect, options: Options) -> None:
    """Only vLLM minds the name."""
    if dialect.name == "vllm" and asked and asked != options.model:
        raise Refused("model", f"The model `{asked}` does not exist.", param="model")


def split(given: Prompt) -> list[str | list[int]]:
    """The single prompts of /v1/completions, the single inputs of /v1/embeddings."""
    if isinstance(given, str):
        return [given]
    ids = [one for one in given if isinstance(one, int)]
    return [ids] if ids else [one for one in given if not isinstance(one, int)]


def tokens_of(one: str | list[int]) -> Tokens:
    return text.tokenize(one) if isinstance(one, str) else array("I", [token & 0x7FFFFFFF for token in one])


def _check(fields: _Body, dialect: Dialect, options: Options, *, chat: bool) -> None:
    check_model(fields.model, dialect, options)
    if chat and fields.messages is None:
        raise Refused("schema", "'messages' is required", param="messages")
    if not chat and fields.prompt is None:
        raise Refused("schema", "'prompt' is required", param="prompt")
    if fields.stream_options is not None and not fields.stream and dialect.name in {"vllm", "trtllm"}:
        raise Refused("schema", "Stream options can only be defined when `stream=True`.", param="stream_options")
    limit = _limit(fields)
    if limit is not None and limit < 1:
        raise Refused("invalid", f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
    if fields.n is not None and not 1 <= fields.n <= 128:  # noqa: PLR2004  OpenAI's own bound
        raise Refused("invalid", f"n must be between 1 and 128, got {fields.n}.", param="n")


def _limit(fields: _Body) -> int | None:
    return fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens


def _prompts(fields: _Body, *, chat: bool) -> list[Tokens]:
    if chat:
        return [text.tokenize(text.chat_prompt(fields.messages or [], fields.tools))]
    return [tokens_of(one) for one in split(fields.prompt or "")] or [array("I")]


def _choice(fields: _Body, prompt: Tokens, index: int, dialect: Dialect, options: Options, *, repeated: bool) -> Choice:
    length, by_itself = _length(fields, len(prompt), dialect, options)
    seed = fields.seed if fields.seed is not None else options.seed
    calls = _calls(fields)
    if calls:
        pieces, finish = calls[:length], "tool_calls" if length >= len(calls) else "length"
    else:
        words = text.answer(prompt, seed, index, length)
        thoughts = min(fields.sim_reasoning, length)
        spoken, stopped = _stop(
            [word.lstrip() if at == thoughts else word for at, word in enumerate(words)][thoughts:], fields.stop
        )
        pieces = [Piece(word, "reasoning") for word in words[:thoughts]] + [Piece(word) for word in spoken]
        finish = "stop" if stopped or by_itself else "length"
    return Choice(prompt or array("I", [0]), tuple(pieces), finish, repeated)


def _length(fields: _Body, prompt: int, dialect: Dialect, options: Options) -> tuple[int, bool]:
    """How many tokens the answer has, and whether it ends by itself. Raises Refused where it does not fit."""
    longest, limit = options.longest, _limit(fields)
    if prompt >= longest:
        raise _too_long(dialect, prompt, limit, longest)
    if limit is not None and prompt + limit > longest and dialect.name in {"vllm", "tgi"}:
        raise _too_long(dialect, prompt, limit, longest)
    natural = options.answer_tokens or (NATURAL_LENGTH if limit is None else limit + 1)
    wanted = natural if limit is None else min(limit, natural)
    room = min(wanted, longest - prompt)
    return room, room == natural


def _too_long(dialect: Dialect, prompt: int, limit: int | None, longest: int) -> Refused:
    match dialect.name:
        case "llamacpp":
            extra = {"n_prompt_tokens": prompt, "n_ctx": longest}
            return Refused(
                "too_long",
                f"the request exceeds the available context size ({longest} tokens), try increasing it",
                extra=extra,
            )
        case "tgi" if limit is None:
            return Refused(
                "too_long", f"Input validation error: `inputs` must have less than {longest} tokens. Given: {prompt}"
            )
        case "tgi":
            return Refused(
                "too_long",
                f"Input validation error: `inputs` tokens + `max_new_tokens` must be <= {longest}. "
                f"Given: {prompt} `inputs` tokens and {limit} `max_new_tokens`",
            )
        case _:
            return Refused(
                "too_long",
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{prompt + (limit or 0)} tokens ({prompt} in the messages, {limit or 0} in the completion).",
                param="input_tokens",
            )


def _stop(words: list[str], stop: str | list[str] | None) -> tuple[list[str], bool]:
    """The words up to the first stop sequence; its own text is left out."""
    sequences = [stop] if isinstance(stop, str) else (stop or [])
    whole = "".join(words)
    found = [at for at in (whole.find(one) for one in sequences if one) if at >= 0]
    if not found:
        return words, False
    kept: list[str] = []
    left = min(found)
    for word in words:
        kept.append(word[:left])
        left -= len(word)
        if left <= 0:
            break
    return kept, True


def _calls(fields: _Body) -> list[Piece]:
    """The tool calls of an answer: forced by tool_choice, or ordered with sim_tools."""
    tools = [tool["function"] for tool in fields.tools or [] if isinstance(tool.get("function"), dict)]
    choice = fields.tool_choice
    if isinstance(choice, dict):
        name = cast("dict[str, Any]", choice.get("function") or {}).get("name")
        tools = [tool for tool in tools if tool.get("name") == name]
    count = fields.sim_tools or int(choice == "required" or isinstance(choice, dict))
    pieces: list[Piece] = []
    for call in range(count if tools else 0):
        function = tools[call % len(tools)]
        arguments = msgspec.json.encode(_arguments(function.get("parameters") or {})).decode()
        pieces.append(Piece("", "tool", call, str(function.get("name", ""))))
        pieces += [Piece(part.decode(), "tool", call) for part in text.pieces(arguments)]
    return pieces


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that satisfy the simple part of a JSON schema: the required properties, by type."""
    made: dict[str, Any] = {
        "string": "sim",
        "integer": 1,
        "number": 1.5,
        "boolean": True,
        "array": [],
        "object": {},
        "null": None,
    }
    properties: Mapping[str, Any] = schema.get("properties") or {}
    return {
        name: (properties[name].get("enum") or [made.get(properties[name].get("type"), "sim")])[0]
        for name in schema.get("required") or properties
        if name in properties
    }
