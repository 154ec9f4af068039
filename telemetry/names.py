"""Every name that leaves this process in a metric or a span; docs/reference/metrics.md is tested against it."""

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]


class Metric(msgspec.Struct, frozen=True):
    """One metric. `unit` is UCUM, as OpenTelemetry asks; an empty label value means that the label is absent."""

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name in the Prometheus text, by OpenTelemetry's compatibility specification."""
        words = [prometheus_label(self.name)]
        top, _, per = self.unit.partition("/")
        words += [_WORDS[top]] if top in _WORDS else []
        words += [f"per_{_PER[per]}"] if per else []
        words += ["ratio"] if self.unit == "1" and self.kind == "gauge" else []
        words += ["total"] if self.kind == "counter" else []
        return "_".join(words)


_WORDS = {"s": "seconds", "By": "bytes"}
_PER = {"s": "second"}


def prometheus_label(name: str) -> str:
    """An attribute's name as a Prometheus label: `turnout.pool` -> `turnout_pool`."""
    return name.replace(".", "_")


class Described(msgspec.Struct, frozen=True):
    """A span, or an attribute of a metric or a span."""

    name: str
    description: str


# What the gateway calls an operation -> gen_ai.operation.name
OPERATIONS = {"chat": "chat", "completions": "text_completion", "embeddings": "embeddings"}
PROVIDER = "turnout"  # gen_ai.provider.name: the models are one's own, so none of the well-known providers applies
SCOPE = "turnout"
OTHER = "_other"  # stands for label values past the bound
OVERFLOW = "otel.metric.overflow"  # the label of the one series that takes what is past the bound of a metric

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - a kind of token, not a secret
ERROR_TYPE = "error.type"
STATUS_CODE = "http.response.status_code"
POOL = "turnout.pool"
CALLER = "turnout.caller"
OUTCOME = "turnout.outcome"
ROUTE = "turnout.route"
FORM = "turnout.compression.form"
PREFIX_SOURCE = "turnout.prefix.source"
PREFIX_MODE = "turnout.prefix.mode"
PREFIX_REASON = "turnout.prefix.reason"
REPLICA_STATE = "turnout.replica.state"

# Boundaries that the GenAI semantic conventions ask for
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(float(4**power) for power in range(14))
# Ours
_WAIT = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_QUICK = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
_SHARE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

_GEN_AI = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, POOL)

REQUEST_DURATION = Metric(
    "gen_ai.server.request.duration",
    "histogram",
    "s",
    "Time from a request's first byte to the last byte of its answer.",
    (*_GEN_AI, ERROR_TYPE),
    _DURATION,
)
TIME_TO_FIRST_TOKEN = Metric(
    "gen_ai.server.time_to_first_token",
    "histogram",
    "s",
    "Time until the first non-empty content, reasoning or tool delta, waiting included.",
    _GEN_AI,
    _FIRST_TOKEN,
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "gen_ai.server.time_per_output_token",
    "histogram",
    "s",
    "Time per output token after the first; tokens as the engine counted them.",
    _GEN_AI,
    _PER_TOKEN,
)
TOKEN_USAGE = Metric(
    "gen_ai.client.token.usage",
    "histogram",
    "{token}",
    "Input and output tokens of a request, as the engine counted them.",
    (*_GEN_AI, TOKEN_TYPE),
    _TOKENS,
)
REQUESTS = Metric(
    "turnout.requests",
    "counter",
    "{request}",
    "Finished requests.",
    (OPERATION_NAME, POOL, CALLER, OUTCOME, STATUS_CODE),
)
CALLER_TOKENS = Metric(
    "turnout.caller.tokens", "counter", "{token}", "Tokens by the name of the API key.", (CALLER, TOKEN_TYPE)
)
ROUTED = Metric(
    "turnout.routed",
    "counter",
    "{request}",
    "Requests by the model that was asked for, the pool that was chosen, and why.",
    (REQUEST_MODEL, POOL, ROUTE),
)
RETRIES = Metric("turnout.upstream.retries", "counter", "{attempt}", "Attempts after the first of a request.", (POOL,))
DECISION_DURATION = Metric(
    "turnout.decision.duration",
    "histogram",
    "s",
    "Work before sending: facts and decision, without waiting.",
    (POOL,),
    _QUICK,
)
QUEUE_WAIT = Metric(
    "turnout.queue.wait", "histogram", "s", "Time that a request waited in its pool's queue.", (POOL,), _WAIT
)
QUEUE_WAITING = Metric("turnout.queue.waiting", "gauge", "{request}", "Requests waiting in the queue now.", (POOL,))
INFLIGHT = Metric("turnout.inflight", "gauge", "{request}", "Requests that an engine is answering now.", (POOL,))
REPLICAS = Metric(
    "turnout.replicas", "gauge", "{replica}", "Replicas by state, as this process sees them.", (POOL, REPLICA_STATE)
)
PREFIX_HIT = Metric(
    "turnout.prefix.hit",
    "histogram",
    "1",
    "Share of a prompt that the index expected in the chosen replica's cache.",
    (POOL,),
    _SHARE,
)
PREFIX_TOKENS = Metric(
    "turnout.prefix.tokens",
    "counter",
    "{token}",
    "Prompt tokens found in a replica's cache: as the index predicted, and as the engine reported.",
    (POOL, PREFIX_SOURCE),
)
PREFIX_BLOCKS = Metric("turnout.prefix.blocks", "gauge", "{block}", "Blocks of prompt text in the prefix index.")
PREFIX_MODE_IN_FORCE = Metric(
    "turnout.prefix.mode.active",
    "gauge",
    "{mode}",
    "1 for the mode in force: exact (told by the engines) or approximate, and why.",
    (PREFIX_MODE, PREFIX_REASON),
)
COMPRESSION_INPUT = Metric(
    "turnout.compression.input",
    "counter",
    "By",
    "Prompt text before compression, by the form that was sent.",
    (POOL, FORM),
)
COMPRESSION_REMOVED = Metric(
    "turnout.compression.removed", "counter", "By", "Prompt text that compression took away.", (POOL, FORM)
)
COMPRESSION_TOKENS = Metric(
    "turnout.compression.tokens_removed",
    "counter",
    "{token}",
    "Prompt tokens that compression saved, at the request's own tokens per byte.",
    (POOL, FORM),
)
SYSTEM_TOKENS = Metric(
    "turnout.tokens.system",
    "gauge",
    "{token}/s",
    "Output tokens per second of all users together, over the last 60 s.",
    (POOL,),
)
USER_TOKENS = Metric(
    "turnout.tokens.user",
    "gauge",
    "{token}/s",
    "Output tokens per second that one user sees while an answer runs: the median over the last 60 s.",
    (POOL,),
)
RECORDS_DROPPED = Metric(
    "turnout.records.dropped", "counter", "{record}", "Request records that were lost because their queue was full."
)
LOOP_LAG = Metric(
    "turnout.loop.lag", "histogram", "s", "How late the event loop woke a task that asked for it.", (), _QUICK
)
CPU_TIME = Metric("process.cpu.time", "counter", "s", "CPU time of this process, user and system.")
MEMORY = Metric("process.memory.usage", "gauge", "By", "Resident memory of this process.")
DESCRIPTORS = Metric(
    "process.unix.file_descriptor.count", "gauge", "{file_descriptor}", "Open file descriptors of this process."
)

METRICS: tuple[Metric, ...] = (
    REQUEST_DURATION,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    TOKEN_USAGE,
    REQUESTS,
    CALLER_TOKENS,
    ROUTED,
    RETRIES,
    DECISION_DURATION,
    QUEUE_WAIT,
    QUEUE_WAITING,
    INFLIGHT,
    REPLICAS,
    PREFIX_HIT,
    PREFIX_TOKENS,
    PREFIX_BLOCKS,
    PREFIX_MODE_IN_FORCE,
    COMPRESSION_INPUT,
    COMPRESSION_REMOVED,
    COMPRESSION_TOKENS,
    SYSTEM_TOKENS,
    USER_TOKENS,
    RECORDS_DROPPED,
    LOOP_LAG,
    CPU_TIME,
    MEMORY,
    DESCRIPTORS,
)

# Spans. The server span of a request is called `{operation} {model}`, as the GenAI conventions ask.
AUTHENTICATE = "authenticate"
PARSE = "parse"
ADMIT = "admit"
FACTS = "facts"
DECIDE = "decide"
QUEUE = "queue"
UPSTREAM = "upstream"
FIRST_TOKEN = "first token"  # noqa: S105 - a span, not a secret
DECODE = "decode"

SPANS: tuple[Described, ...] = (
    Described("{operation} {model}", "the request, from its first byte to the last byte of its answer (server span)"),
    Described(AUTHENTICATE, "key to caller"),
    Described(PARSE, "the body, opened one level deep"),
    Described(ADMIT, "the key's limits"),
    Described(FACTS, "prompt forms, prefix hits, difficulty"),
    Described(DECIDE, "pool, replica and form; once more after a wait"),
    Described(QUEUE, "waiting for a slot of the chosen pool"),
    Described(UPSTREAM, "one attempt at one replica (client span); its id is the parent that the engine sees"),
    Described(FIRST_TOKEN, "below the attempt that answered: from sending to the first token"),
    Described(DECODE, "below the attempt that answered: from the first token to the last"),
)

REPLICA = "turnout.replica"
QUEUED = "turnout.queued"
HIT = "turnout.prefix.share"
REQUEST_ID = "turnout.request.id"
RESEND_COUNT = "http.request.resend_count"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
STREAM = "gen_ai.request.stream"
BECAUSE = "turnout.because"  # followed by the term's name

ATTRIBUTES: tuple[Described, ...] = (
    Described(OPERATION_NAME, "`chat`, `text_completion` or `embeddings`"),
    Described(PROVIDER_NAME, "always `turnout`"),
    Described(REQUEST_MODEL, "the model as the client asked for it: an alias or a pool"),
    Described(TOKEN_TYPE, "`input` or `output`"),
    Described(ERROR_TYPE, "the code of the error told to the client (errors.md); absent when it went well"),
    Described(STATUS_CODE, "HTTP status of the answer"),
    Described(POOL, "the pool that was chosen; absent where a request got none"),
    Described(CALLER, "the name of the API key, never the key; absent where it was not known"),
    Described(OUTCOME, "`ok`, `error`, `cancelled` (the client left) or `interrupted` (the engine broke off)"),
    Described(ROUTE, "why this pool: `forced`, `rule` or `gain`"),
    Described(FORM, "the form of the prompt that was sent: `as is` or `lossless`"),
    Described(PREFIX_SOURCE, "`predicted` by the index or `reported` by the engine"),
    Described(PREFIX_MODE, "`exact` or `approximate`"),
    Described(PREFIX_REASON, "why the mode is not exact"),
    Described(REPLICA_STATE, "state of a replica, for example `ready`"),
    Described(OVERFLOW, "`true` on the one series that takes what is past the bound of a metric's label sets"),
    Described(REPLICA, "the replica an attempt was sent to"),
    Described(QUEUED, "seconds in the queue"),
    Described(HIT, "share of the prompt expected in the replica's cache"),
    Described(REQUEST_ID, "the same id as `x-turnout-request-id`"),
    Described(RESEND_COUNT, "attempts before this one"),
    Described(INPUT_TOKENS, "prompt tokens as the engine counted them"),
    Described(OUTPUT_TOKENS, "completion tokens as the engine counted them"),
    Described(CACHED_TOKENS, "prompt tokens that the engine found in its cache"),
    Described(STREAM, "whether the client asked for a stream"),
    Described(f"{BECAUSE}.*", "one term of the chosen plan's cost, in seconds of a slot"),
)
