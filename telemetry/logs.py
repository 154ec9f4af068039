"""Logs as lines of JSON: no prompt text, no keys, one line for each request."""

import asyncio
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TextIO

import msgspec
from typing_extensions import override

from telemetry.record import RequestRecord
from telemetry.redact import hidden, safe

ACCESS = "turnout.access"
LONGEST_MODEL = 200
MODELS = 256  # names kept as written
LONGEST_WAIT = 0.25  # seconds that the line of a finished request may wait for others
MOST_WAITING = 64 * 1024  # characters of such lines

# Libraries that tell of every request or every connection, and those that tell of their own start.
_TALKATIVE = ("uvicorn.access", "httpx", "httpcore", "urllib3", "amqp", "kombu", "aiosqlite", "asyncio")
_TELLING = ("uvicorn", "uvicorn.error", "celery", "litestar", "opentelemetry", "alembic", "sqlalchemy")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_REQUEST = "_request"  # where a log record keeps the request it tells of


class AccessLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is told of one finished request. Seconds and tokens; a field at its default is left out."""

    time: str
    level: str
    logger: str
    message: str
    request_id: str
    operation: str
    model: str
    status: int
    outcome: str
    duration: float
    caller: str = ""
    pool: str = ""
    replica: str = ""
    route: str = ""
    error: str = ""
    stream: bool = False
    form: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefix_hit: float = 0.0
    queued: float = 0.0
    ttft: float | None = None
    tpot: float | None = None
    attempts: int = 1
    trace_id: str = ""


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then whatever the call gave as `extra`."""

    def __init__(self) -> None:
        super().__init__()
        self._encoder = msgspec.json.Encoder()
        self._second = (-1, "")  # the last second, and how it is written
        self._models: dict[str, str] = {}  # as asked -> as written

    @override
    def format(self, record: logging.LogRecord) -> str:
        request = record.__dict__.get(_REQUEST)
        if isinstance(request, RequestRecord):
            return self._encoder.encode(self._line(record, request)).decode()
        return self._encoder.encode(self._fields(record)).decode()

    def _time(self, at: float) -> str:
        """UTC, ISO 8601, to the millisecond."""
        millis = int(at * 1000)
        second = millis // 1000
        if second != self._second[0]:
            self._second = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
        return f"{self._second[1]}.{millis % 1000:03d}Z"

    def _model(self, name: str) -> str:
        """The model's name is the client's text: cut, and without what looks like a key."""
        written = self._models.get(name)
        if written is None:
            written = hidden(name[:LONGEST_MODEL])
            if len(self._models) < MODELS:
                self._models[name] = written
        return written

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        line: dict[str, Any] = {
            "time": self._time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hidden(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in line:
                line[name] = safe(name, value)
        if record.exc_info:
            line["exception"] = hidden(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = hidden(record.stack_info)
        return line

    def _line(self, record: logging.LogRecord, request: RequestRecord) -> AccessLine:
        return AccessLine(
            time=self._time(record.created),
            level="info",
            logger=record.name,
            message="request",
            request_id=request.id,
            operation=request.operation,
            model=self._model(request.model),
            status=request.status,
            outcome=request.outcome,
            duration=round(request.duration, 6),
            caller=request.caller,
            pool=request.pool,
            replica=request.replica,
            route=request.route,
            error=request.error,
            stream=request.stream,
            form=request.form if request.pool else "",
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens,
            completion_tokens=request.completion_tokens,
            prefix_hit=round(request.prefix_hit, 4),
            queued=round(request.queued, 6),
            ttft=None if request.ttft is None else round(request.ttft, 6),
            tpot=None if request.tpot is None else round(request.tpot, 6),
            attempts=request.attempts,
            trace_id=request.traceparent[3:35],
        )


class Access:
    """One line at INFO for each finished request, put into words only where a handler writes it."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        # The fields of a log record, made once: making one costs 5 us, most of them for things that never change.
        self._blank = vars(logging.LogRecord(logger.name, logging.INFO, "", 0, "request", None, None))

    def tell(self, request: RequestRecord, now: float) -> None:
        """`now`: Unix time, seconds."""
        if self._logger.isEnabledFor(logging.INFO):
            record = logging.LogRecord.__new__(logging.LogRecord)
            record.__dict__.update(self._blank, created=now, msecs=now % 1 * 1000)
            record.__dict__[_REQUEST] = request
            self._logger.handle(record)


class Lines(logging.StreamHandler[TextIO]):
    """Writes each line at once, but for those of finished requests: within an event loop they wait for company."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._waiting: list[str] = []
        self._size = 0

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            self._waiting.append(line)
            self._size += len(line)
            if _REQUEST not in record.__dict__ or self._size >= MOST_WAITING or not self._soon():
                self.flush()
        except Exception:  # noqa: BLE001  as every handler of the standard library
            self.handleError(record)

    def _soon(self) -> bool:
        """Whether what waits is written in a while: False where there is no event loop to see to it."""
        if len(self._waiting) == 1:
            try:
                asyncio.get_running_loop().call_later(LONGEST_WAIT, self.flush)
            except RuntimeError:
                return False
        return True

    @override
    def flush(self) -> None:
        self.acquire()
        try:
            lines, self._waiting, self._size = self._waiting, [], 0
            if lines:
                self.stream.write("\n".join(lines) + "\n")
            super().flush()
        finally:
            self.release()


@contextmanager
def json_logs(level: str, stream: TextIO) -> Generator[None]:
    """Write every log of this process as JSON lines to `stream`; on leaving, the handlers before are back.

    `level`: debug | info | warning | error. Give uvicorn `log_config=None`, or it puts its own handlers in front.
    """
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    levels = {name: logging.getLogger(name).level for name in (*_TALKATIVE, *_TELLING)}
    handler = Lines(stream)
    handler.setFormatter(JsonLines())
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    debug = level.lower() == "debug"
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.INFO if debug else logging.WARNING)
    for name in _TELLING:
        logging.getLogger(name).setLevel(logging.INFO if debug else max(root.level, logging.WARNING))
    try:
        yield
    finally:
        handler.flush()
        root.handlers[:], root.level = before
        for name, was in levels.items():
            logging.getLogger(name).setLevel(was)
