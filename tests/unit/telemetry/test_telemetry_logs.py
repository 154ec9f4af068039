"""JSON lines: what is in them, and what never is."""

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import logs
from telemetry.logs import ACCESS, Access, JsonLines, json_logs
from telemetry.redact import HIDDEN, hidden, safe
from tests.support.processes import until
from tests.support.telemetry import PROMPT, a_record

KEY = "sk-proj-abcdefghijklmnop123456"


@pytest.fixture
def logged():
    """The lines written so far."""
    stream = io.StringIO()
    with json_logs("info", stream):
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object(logged):
    logging.getLogger("turnout.test").warning(
        "pool %s\nis %s", "small", "full", extra={"request_id": "r1", "waiting": 3}
    )
    [line] = logged()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "turnout.test",
        "message": "pool small\nis full",
        "request_id": "r1",
        "waiting": 3,
    }


def test_the_time_is_utc_to_the_millisecond():
    record = logging.makeLogRecord({"msg": "x", "created": 1_700_000_000.0 + 0.0625})
    formatter = JsonLines()
    assert json.loads(formatter.format(record))["time"] == "2023-11-14T22:13:20.062Z"
    record.created += 1
    assert json.loads(formatter.format(record))["time"] == "2023-11-14T22:13:21.062Z"


def test_an_exception_is_told_with_its_traceback(logged):
    try:
        int(f"Authorization: Bearer {KEY}")
    except ValueError:
        logging.getLogger("turnout.test").exception("it failed")
    [line] = logged()
    assert "Traceback" in line["exception"]
    assert "ValueError" in line["exception"]
    assert KEY not in line["exception"]


def test_below_the_level_nothing_is_written(logged):
    logging.getLogger("turnout.test").debug("not this")
    assert logged() == []


@pytest.mark.parametrize("name", ["uvicorn.access", "httpx", "httpcore.connection", "urllib3.connectionpool", "kombu"])
def test_libraries_that_tell_of_every_request_are_quiet(logged, name, monkeypatch):
    # a server that an earlier test started in this process may have cut its logger off
    monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    logging.getLogger(name).info("HTTP Request: POST ...")
    assert logged() == []
    logging.getLogger(name).warning("something is wrong")
    assert [line["logger"] for line in logged()] == [name]


def test_what_was_set_before_is_set_again():
    root, httpx = logging.getLogger(), logging.getLogger("httpx")
    before = (root.handlers[:], root.level, httpx.level)
    with json_logs("debug", io.StringIO()):
        assert root.level == logging.DEBUG
        assert root.handlers != before[0]
    assert (root.handlers, root.level, httpx.level) == before


def test_one_access_line_for_a_request(logged):
    Access(logging.getLogger(ACCESS)).tell(a_record(traceparent=f"00-{'a' * 32}-{'b' * 16}-01", stream=True), 1.5)
    [line] = logged()
    assert line == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "turnout.access",
        "message": "request",
        "request_id": "req-1",
        "operation": "chat",
        "model": "auto",
        "status": 200,
        "outcome": "ok",
        "duration": 0.26,
        "caller": "dev",
        "pool": "small",
        "replica": "small-0",
        "route": "gain=0.23",
        "stream": True,
        "form": "lossless",
        "prompt_tokens": 75,
        "cached_tokens": 50,
        "completion_tokens": 11,
        "prefix_hit": 0.8,
        "queued": 0.002,
        "ttft": 0.05,
        "tpot": 0.02,
        "trace_id": "a" * 32,
    }


def test_what_does_not_apply_is_left_out(logged):
    record = a_record(
        pool="", replica="", route="", status=401, outcome="error", error="invalid_api_key", ttft=None, tpot=None
    )
    Access(logging.getLogger(ACCESS)).tell(record, 0.0)
    [line] = logged()
    assert line["error"] == "invalid_api_key"
    assert not line.keys() & {"pool", "replica", "form", "ttft", "tpot", "trace_id"}


def test_an_access_line_is_made_only_where_it_is_written(monkeypatch):
    logger = logging.getLogger(ACCESS)
    monkeypatch.setattr(logger, "handle", None)  # touching it would fail
    stream = io.StringIO()
    with json_logs("warning", stream):
        Access(logger).tell(a_record(), 0.0)
    assert stream.getvalue() == ""


def test_other_handlers_get_an_ordinary_record(caplog):
    with caplog.at_level(logging.INFO):
        Access(logging.getLogger(ACCESS)).tell(a_record(), 12.25)
    [record] = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (ACCESS, "INFO", "request")
    assert (record.created, record.msecs) == (12.25, 250.0)


async def test_lines_of_requests_wait_for_company_a_moment(logged, monkeypatch):
    monkeypatch.setattr(logs, "LONGEST_WAIT", 0.01)
    access = Access(logging.getLogger(ACCESS))
    access.tell(a_record(id="1"), 0.0)
    access.tell(a_record(id="2"), 0.0)
    assert logged() == []
    await until(lambda: len(logged()) == 2)
    assert [line["request_id"] for line in logged()] == ["1", "2"]


async def test_any_other_line_takes_them_along_in_their_order(logged):
    Access(logging.getLogger(ACCESS)).tell(a_record(), 0.0)
    logging.getLogger("turnout.test").info("next")
    assert [line["message"] for line in logged()] == ["request", "next"]


async def test_they_do_not_pile_up(logged, monkeypatch):
    monkeypatch.setattr(logs, "MOST_WAITING", 1000)
    access = Access(logging.getLogger(ACCESS))
    for _ in range(10):
        access.tell(a_record(), 0.0)
    assert len(logged()) > 1


async def test_none_is_lost_at_the_end():
    stream = io.StringIO()
    with json_logs("info", stream):
        Access(logging.getLogger(ACCESS)).tell(a_record(), 0.0)
    assert json.loads(stream.getvalue())["message"] == "request"


def test_a_models_name_is_cut_and_cleaned(logged):
    access = Access(logging.getLogger(ACCESS))
    for model in (f"my key is {KEY}", "x" * 5000, 'quote " and\nline'):
        access.tell(a_record(model=model), 0.0)
        access.tell(a_record(model=model), 0.0)
    models = [line["model"] for line in logged()]
    assert models[0] == models[1] == f"my key is {HIDDEN}"
    assert len(models[2]) == 200
    assert models[4] == 'quote " and\nline'


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer {}",
        "authorization: {}",
        "AUTHORIZATION={}",
        "Authorization: Digest {}",
        "{{'authorization': 'Bearer {}'}}",
        '{{"Authorization": "{}"}}',
        "[(b'authorization', b'Bearer {}')]",
        "[(b'authorization', b'{}')]",
        "proxy-authorization: Basic {}",
        "x-api-key: {}",
        "api_key={}",
        "apikey: '{}'",
        "bearer {}",
        "curl -H 'Authorization: Bearer {}' http://x",
        "password={}",
        "Cookie: {}",
    ],
)
@pytest.mark.parametrize("key", [KEY, "dGVzdDp0ZXN0", "plain-word-42"])
def test_credentials_are_taken_out_of_texts(logged, text, key):
    logging.getLogger("turnout.test").error(text.format(key))
    logging.getLogger("turnout.test").error("failed: %s", text.format(key), extra={"detail": [text.format(key)]})
    assert key not in json.dumps(logged())
    assert HIDDEN in json.dumps(logged())


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters=" \t\n\r\f\v'\",)}]"), min_size=8, max_size=40))
def test_no_authorization_value_survives(value):
    for text in (f"Authorization: Bearer {value}", f"authorization={value}", f"{{'Authorization': 'Bearer {value}'}}"):
        told = hidden(text)
        assert f"Bearer {value}" not in told
        assert f"={value}" not in told
        assert told.count(HIDDEN) >= 1


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "Authorization",
        "api_key",
        "x-api-key",
        "password",
        "client_secret",
        "set-cookie",
        "key",
        "token",
    ],
)
def test_fields_of_secrets_are_never_written(logged, name):
    logging.getLogger("turnout.test").info(
        "x", extra={"headers": {name: "plainword"}, "deep": [{"a": {name: b"plainword"}}]}
    )
    logging.getLogger("turnout.test").info("x", extra={name: "plainword"})
    assert "plainword" not in json.dumps(logged())


@pytest.mark.parametrize("name", ["prompt", "messages", "content", "body", "input", "Messages"])
def test_fields_of_prompt_text_are_never_written(logged, name):
    told = [{"role": "user", "content": PROMPT}]
    logging.getLogger("turnout.test").info(
        "x", extra={name: told, "request": {name: PROMPT}, "raw_bytes": PROMPT.encode()}
    )
    assert PROMPT not in json.dumps(logged())
    assert len(logged()) == 1


def test_ordinary_fields_stay_as_they_are():
    value = {"tokens": 3, "share": 0.5, "ready": True, "none": None, "names": ("a", "b"), "kind": ValueError("no")}
    assert safe("detail", value) == {
        "tokens": 3,
        "share": 0.5,
        "ready": True,
        "none": None,
        "names": ["a", "b"],
        "kind": "no",
    }
    assert hidden("the pool small answered 200 in 0.3 s") == "the pool small answered 200 in 0.3 s"
