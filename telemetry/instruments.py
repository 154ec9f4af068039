"""What the gateway counts: a finished request into all its metrics; the state of queues, replicas and index."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from telemetry import names
from telemetry.aggregate import Buckets, Family, Labels, Number, histogram, numbers
from telemetry.names import Metric
from telemetry.record import RequestRecord

MODELS = 100  # names that a client may make up: more of them share one label value
CALLERS = 400
ERRORS = 60  # codes; a model server's own are among them
KINDS = 4096  # kinds of request whose cells are kept at hand

Read = Callable[[], Mapping[Labels, float]]
Collected = tuple[Metric, Sequence[tuple[Mapping[str, str], Number | Buckets]]]


class Instruments:
    """Every metric of one process. One thread (the event loop's) adds; `collect` may be called from any."""

    def __init__(self, *, bound: int = 500) -> None:
        self._numbers = {metric: numbers(metric, bound) for metric in names.METRICS if metric.kind != "histogram"}
        self._histograms = {metric: histogram(metric, bound) for metric in names.METRICS if metric.kind == "histogram"}
        self._watched: dict[Metric, Read] = {}
        self._kinds: dict[tuple[str | int, ...], _Kind] = {}
        self._models: set[str] = set()
        self._callers: set[str] = set()
        self._errors: set[str] = set()

    def request(self, record: RequestRecord) -> None:
        """Count one finished request. Costs a few microseconds: benchmarks/telemetry_cost.py."""
        key = (
            record.operation,
            record.model,
            record.pool,
            record.caller,
            record.route.partition("=")[0],
            record.status,
            record.outcome,
            record.error,
            record.form,
        )
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = self._kind(record)
        kind.add(record)

    def queue(self, pool: str, waiting: int, inflight: int) -> None:
        self.number(names.QUEUE_WAITING, pool).value = waiting
        self.number(names.INFLIGHT, pool).value = inflight

    def replicas(self, pool: str, states: Mapping[str, int]) -> None:
        """Replicas of a pool by state. A state that is no longer named falls to zero."""
        for labels, cell in self._numbers[names.REPLICAS].series():
            if labels.get(names.POOL) == pool:
                cell.value = 0
        for state, count in states.items():
            self.number(names.REPLICAS, pool, state).value = count

    def index(self, blocks: int, mode: str, reason: str = "") -> None:
        """The prefix index: its size, the mode in force, and why that is not `exact`."""
        self.number(names.PREFIX_BLOCKS).value = blocks
        self._numbers[names.PREFIX_MODE_IN_FORCE].clear()
        self.number(names.PREFIX_MODE_IN_FORCE, mode, reason).value = 1

    def dropped(self, records: int) -> None:
        self.number(names.RECORDS_DROPPED).value += records

    def loop_lag(self, seconds: float) -> None:
        self._histograms[names.LOOP_LAG].at().observe(seconds)

    def number(self, metric: Metric, *labels: str) -> Number:
        """The cell of a counter or gauge, to be kept and added to. Raises KeyError where the metric is a histogram."""
        return self._numbers[metric].at(*labels)

    def buckets(self, metric: Metric, *labels: str) -> Buckets:
        return self._histograms[metric].at(*labels)

    def watch(self, metric: Metric, read: Read) -> None:
        """Have a number read when it is asked for. `read` maps label values, in the metric's order, to numbers.

        It may be called from another thread than the event loop's.
        """
        if metric not in self._numbers:
            raise ValueError(f"{metric.name} is a histogram and cannot be read as a number.")
        self._watched[metric] = read

    def collect(self) -> Iterator[Collected]:
        """Every metric in the order of the table, with its label sets."""
        for metric in names.METRICS:
            if metric.kind == "histogram":
                yield metric, list(self._histograms[metric].series())
            elif metric in self._watched:
                yield metric, list(_read(metric, self._watched[metric]).series())
            else:
                yield metric, list(self._numbers[metric].series())

    def _kind(self, record: RequestRecord) -> "_Kind":
        unknown = record.error == "model_not_found"
        model = names.OTHER if unknown else _bounded(self._models, record.model, MODELS)
        caller = _bounded(self._callers, record.caller, CALLERS)
        error = ""
        if record.outcome in ("error", "interrupted"):
            error = _bounded(self._errors, record.error, ERRORS) or names.OTHER
        return _Kind(self, record, (model, caller, error))


class _Kind:
    """The cells that requests of one kind are counted in: looked up once, added to ever after."""

    def __init__(self, to: Instruments, record: RequestRecord, bounded: tuple[str, str, str]) -> None:
        model, caller, error = bounded
        operation = names.OPERATIONS.get(record.operation, record.operation)
        gen_ai = (operation, names.PROVIDER, model, record.pool)
        self.duration = to.buckets(names.REQUEST_DURATION, *gen_ai, error)
        self.requests = to.number(names.REQUESTS, operation, record.pool, caller, record.outcome, str(record.status))
        self.routed = _Routed(to, record, gen_ai, caller) if record.pool else None

    def add(self, record: RequestRecord) -> None:
        self.requests.value += 1
        self.duration.observe(record.duration)
        if self.routed is not None:
            self.routed.add(record)


class _Routed:
    """The cells of requests that got as far as a pool."""

    def __init__(self, to: Instruments, record: RequestRecord, gen_ai: tuple[str, str, str, str], caller: str) -> None:
        _, _, model, pool = gen_ai
        self.first = to.buckets(names.TIME_TO_FIRST_TOKEN, *gen_ai)
        self.per = to.buckets(names.TIME_PER_OUTPUT_TOKEN, *gen_ai)
        self.input = to.buckets(names.TOKEN_USAGE, *gen_ai, "input")
        self.output = to.buckets(names.TOKEN_USAGE, *gen_ai, "output")
        self.caller_input = to.number(names.CALLER_TOKENS, caller, "input")
        self.caller_output = to.number(names.CALLER_TOKENS, caller, "output")
        self.routed = to.number(names.ROUTED, model, pool, record.route.partition("=")[0])
        self.retries = to.number(names.RETRIES, pool)
        self.decision = to.buckets(names.DECISION_DURATION, pool)
        self.wait = to.buckets(names.QUEUE_WAIT, pool)
        self.hit = to.buckets(names.PREFIX_HIT, pool)
        self.predicted = to.number(names.PREFIX_TOKENS, pool, "predicted")
        self.reported = to.number(names.PREFIX_TOKENS, pool, "reported")
        self.before = to.number(names.COMPRESSION_INPUT, pool, record.form)
        self.removed = to.number(names.COMPRESSION_REMOVED, pool, record.form)
        self.saved = to.number(names.COMPRESSION_TOKENS, pool, record.form)

    def add(self, record: RequestRecord) -> None:
        self.routed.value += 1
        self.decision.observe(record.decided)
        self.wait.observe(record.queued)
        if record.attempts > 1:
            self.retries.value += record.attempts - 1
        if record.ttft is not None:
            self.first.observe(record.ttft)
        if record.tpot is not None:
            self.per.observe(record.tpot)
        if record.prompt_tokens > 0:
            self._tokens(record)
        if record.sent_bytes > 0:  # it got as far as a replica
            self.hit.observe(record.prefix_hit)
            self.before.value += record.prompt_bytes
            if record.sent_bytes < record.prompt_bytes:
                self.removed.value += record.prompt_bytes - record.sent_bytes
                self.saved.value += tokens_removed(record)

    def _tokens(self, record: RequestRecord) -> None:
        self.input.observe(record.prompt_tokens)
        self.caller_input.value += record.prompt_tokens
        self.reported.value += record.cached_tokens
        self.predicted.value += record.prefix_hit * record.prompt_tokens
        if record.completion_tokens > 0:
            self.output.observe(record.completion_tokens)
            self.caller_output.value += record.completion_tokens


def tokens_removed(record: RequestRecord) -> float:
    """Prompt tokens that compression saved: the bytes it removed, at this request's own tokens per byte sent."""
    removed = record.prompt_bytes - record.sent_bytes
    return removed * record.prompt_tokens / record.sent_bytes if removed > 0 and record.sent_bytes > 0 else 0.0


def _read(metric: Metric, read: Read) -> Family[Number]:
    family = numbers(metric)
    for labels, value in read().items():
        family.at(*labels).value = value
    return family


def _bounded(known: set[str], value: str, bound: int) -> str:
    """A label value that comes from outside: itself while there are few, else the one that stands for the rest."""
    if value in known or not value:
        return value
    if len(known) >= bound or len(value) > 200:  # noqa: PLR2004 - longer than any name worth a series
        return names.OTHER
    known.add(value)
    return value
