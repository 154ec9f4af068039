import pytest

from engines.sim import ask, text
from engines.sim.dialects import DIALECTS, Refused, error_body, status_of
from engines.sim.options import Options

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {
                    "word": {"type": "string"},
                    "count": {"type": "integer"},
                    "how": {"enum": ["fast", "slow"]},
                },
                "required": ["word", "count", "how"],
            },
        },
    },
    {"type": "function", "function": {"name": "other", "parameters": {}}},
]


def read(body, dialect="vllm", *, chat=True, **options):
    return ask.read(body, DIALECTS[dialect], Options(model="m", **options), chat=chat)


def words(choice):
    return "".join(piece.text for piece in choice.pieces)


def refused(body, dialect="vllm", **kwargs):
    with pytest.raises(Refused) as caught:
        read(body, dialect, **kwargs)
    return caught.value


class TestLength:
    def test_max_tokens_decides(self):
        (choice,) = read(HELLO | {"max_tokens": 7}).choices
        assert (len(choice.pieces), choice.finish) == (7, "length")

    def test_the_newer_name_counts_first(self):
        (choice,) = read(HELLO | {"max_tokens": 7, "max_completion_tokens": 3}).choices
        assert len(choice.pieces) == 3

    def test_without_a_limit_the_answer_ends_by_itself(self):
        (choice,) = read(HELLO).choices
        assert (len(choice.pieces), choice.finish) == (ask.NATURAL_LENGTH, "stop")

    @pytest.mark.parametrize(("limit", "length", "finish"), [(3, 3, "length"), (5, 5, "stop"), (9, 5, "stop")])
    def test_a_natural_length_ends_before_the_limit(self, limit, length, finish):
        (choice,) = read(HELLO | {"max_tokens": limit}, answer_tokens=5).choices
        assert (len(choice.pieces), choice.finish) == (length, finish)

    def test_the_context_ends_an_answer_of_llama_cpp(self):
        (choice,) = read(HELLO | {"max_tokens": 500}, "llamacpp", context=32).choices
        assert len(choice.prompt) + len(choice.pieces) == 32
        assert choice.finish == "length"

    @pytest.mark.parametrize(
        ("dialect", "status", "says"),
        [
            ("vllm", 400, "maximum context length is 32 tokens"),
            ("tgi", 422, "`inputs` tokens + `max_new_tokens` must be <= 32"),
        ],
    )
    def test_others_refuse_what_would_not_fit(self, dialect, status, says):
        error = refused(HELLO | {"max_tokens": 500}, dialect, context=32)
        assert says in str(error)
        assert status_of(DIALECTS[dialect], error) == status

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_a_prompt_that_is_too_long_is_refused_by_all(self, dialect):
        body = {"messages": [{"role": "user", "content": "word " * 100}]}
        assert refused(body, dialect, context=50).kind == "too_long"

    def test_llama_cpp_says_how_long(self):
        error = refused({"messages": [{"role": "user", "content": "word " * 100}]}, "llamacpp", context=50)
        shape = error_body(DIALECTS["llamacpp"], error)["error"]
        assert shape["type"] == "exceed_context_size_error"
        assert shape["n_prompt_tokens"] > shape["n_ctx"] == 50


class TestStop:
    def test_a_stop_sequence_ends_the_answer_without_itself(self):
        plain = words(read(HELLO | {"max_tokens": 20}).choices[0])
        stop = plain[9:13]
        (choice,) = read(HELLO | {"max_tokens": 20, "stop": stop}).choices
        assert words(choice) == plain[: plain.find(stop)]
        assert choice.finish == "stop"

    def test_the_first_of_several_counts(self):
        plain = words(read(HELLO | {"max_tokens": 20}).choices[0])
        (choice,) = read(HELLO | {"max_tokens": 20, "stop": [plain[30:34], plain[10:14], "\x00"]}).choices
        assert words(choice) == plain[: min(plain.find(plain[30:34]), plain.find(plain[10:14]))]

    def test_a_sequence_that_does_not_occur_changes_nothing(self):
        (choice,) = read(HELLO | {"max_tokens": 20, "stop": ["\x00", ""]}).choices
        assert choice.finish == "length"


class TestTools:
    def test_required_calls_the_first_tool_with_fitting_arguments(self):
        (choice,) = read(HELLO | {"tools": TOOLS, "tool_choice": "required"}).choices
        assert choice.finish == "tool_calls"
        assert choice.pieces[0].name == "look_up"
        assert words(choice) == '{"word":"sim","count":1,"how":"fast"}'
        assert all(len(piece.text.encode()) <= 4 for piece in choice.pieces)

    def test_a_named_tool_is_called(self):
        (choice,) = read(
            HELLO | {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}
        ).choices
        assert choice.pieces[0].name == "other"
        assert words(choice) == "{}"

    def test_by_default_the_model_speaks(self):
        (choice,) = read(HELLO | {"tools": TOOLS, "max_tokens": 3}).choices
        assert {piece.kind for piece in choice.pieces} == {"content"}

    def test_several_calls_to_order(self):
        (choice,) = read(HELLO | {"tools": TOOLS, "sim_tools": 2}).choices
        assert [piece.name for piece in choice.pieces if piece.name] == ["look_up", "other"]
        assert {piece.call for piece in choice.pieces} == {0, 1}

    def test_a_call_can_run_out_of_tokens(self):
        (choice,) = read(HELLO | {"tools": TOOLS, "tool_choice": "required", "max_tokens": 2}).choices
        assert (len(choice.pieces), choice.finish) == (2, "length")


def test_thoughts_come_before_the_answer():
    (choice,) = read(HELLO | {"sim_reasoning": 2, "max_tokens": 5}).choices
    assert [piece.kind for piece in choice.pieces] == ["reasoning", "reasoning", "content", "content", "content"]
    assert not choice.pieces[2].text.startswith(" ")


def test_n_answers_differ_and_share_their_prompt():
    got = read(HELLO | {"n": 3, "max_tokens": 8})
    assert len({words(choice) for choice in got.choices}) == 3
    assert got.prompt_tokens == len(got.choices[0].prompt)


def test_a_seed_changes_the_answer_and_nothing_else():
    one, two = (read(HELLO | {"seed": seed, "max_tokens": 8}).choices[0] for seed in (1, 2))
    assert words(one) != words(two)
    assert one.prompt == two.prompt
    assert words(one) == words(read(HELLO | {"max_tokens": 8}, seed=1).choices[0])


@pytest.mark.parametrize(
    ("prompt", "count"), [("a text", 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([], 1)]
)
def test_prompts_of_every_shape(prompt, count):
    got = read({"prompt": prompt, "max_tokens": 2}, chat=False)
    assert len(got.choices) == count
    assert got.prompt_tokens == sum(len(choice.prompt) for choice in got.choices)


def test_nulls_are_absent():
    nulls = dict.fromkeys(["stream", "stop", "n", "max_tokens", "tools", "stream_options", "seed", "logprobs"])
    assert not read(HELLO | nulls).stream


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": "no"}, HELLO | {"n": 0}, HELLO | {"n": "2"}, HELLO | {"max_tokens": 0}, HELLO | {"stop": 5}],
)
def test_what_makes_no_sense_is_refused(body):
    assert refused(body).kind in {"schema", "invalid"}


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"a"', b"\xff"])
def test_what_is_no_json_object_is_refused(raw):
    with pytest.raises(Refused, match="JSON"):
        ask.decode(raw)


def test_only_trtllm_minds_unknown_keys():
    body = HELLO | {"metadata": {"a": "b"}}
    assert status_of(DIALECTS["trtllm"], refused(body, "trtllm")) == 400
    for dialect in ("vllm", "tgi", "llamacpp"):
        assert read(body, dialect)
    assert read(HELLO | {"sim_fault": "cut"}, "trtllm")


def test_only_vllm_minds_the_model():
    assert status_of(DIALECTS["vllm"], refused(HELLO | {"model": "nope"})) == 404
    for dialect in ("tgi", "trtllm", "llamacpp"):
        assert read(HELLO | {"model": "nope"}, dialect)


def test_stream_options_need_a_stream():
    assert "stream" in str(refused(HELLO | {"stream_options": {"include_usage": True}}))
    assert read(HELLO | {"stream": True, "stream_options": {"include_usage": True}}).include_usage


@pytest.mark.parametrize(("dialect", "progress"), [("llamacpp", True), ("vllm", False), ("tgi", False)])
def test_progress_is_llama_cpp_s(dialect, progress):
    assert read(HELLO | {"return_progress": True}, dialect).progress is progress


def test_output_ids_are_one_a_piece():
    (choice,) = read(HELLO | {"max_tokens": 9}).choices
    assert list(choice.output) == list(text.tokenize(words(choice)))
