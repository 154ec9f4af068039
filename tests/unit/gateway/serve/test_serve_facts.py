"""What is gathered before a decision, what is learned from answers, and the gain that counts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.types import Replica, ReplicaId
from gateway.serve.body import Body
from gateway.serve.catalog import Live, Pool
from gateway.serve.decide import DEFAULT_TOKENS_PER_BYTE, Facts, Form, decide
from gateway.serve.facts import Gather, hit_share, learn, tokens_per_byte
from gateway.serve.prefix import PrefixIndex
from gateway.serve.route import Route
from telemetry.usage import Usage

ONE = Replica(ReplicaId("s1"), "http://x", "m", slots=4)
TWO = Replica(ReplicaId("l1"), "http://y", "m", slots=4)
SMALL = Pool("small", tier="small", replicas=(ONE,), prefill_rate=1000, decode_rate=50)
LARGE = Pool("large", tier="large", replicas=(TWO,), prefill_rate=1000, decode_rate=25)
BOTH = Route((SMALL, LARGE), 100.0, forced=False)


def body(content="hello", **more):
    raw = {"model": "auto", "messages": [{"role": "user", "content": content}], **more}
    return Body.parse(json.dumps(raw).encode(), "chat")


def gather(**more):
    return Gather(PrefixIndex(), lambda _: {"small": 0.6, "large": 0.8}, **more)


def test_each_pool_gets_the_chance_of_its_tier():
    facts = gather().facts(gather().forms(body(), compress=True), body(), BOTH, Live())
    assert facts.acceptable == {"small": 0.6, "large": 0.8}


def test_the_classifier_is_not_asked_where_there_is_no_choice():
    def never(_):
        raise AssertionError

    alone = Gather(PrefixIndex(), never)
    facts = alone.facts(alone.forms(body(), compress=True), body(), Route((SMALL,), 1.0, forced=True), Live())
    assert facts.acceptable == {"small": 1.0}


def test_the_lossless_form_is_made_only_when_asked_for_and_only_if_it_is_shorter():
    table = json.dumps([{"a": number} for number in range(50)], indent=8)
    messages = [
        {"role": "user", "content": "go"},
        {"role": "tool", "tool_call_id": "x", "content": table},
        {"role": "user", "content": "How many?"},
    ]
    wordy = Body.parse(json.dumps({"model": "auto", "messages": messages}).encode(), "chat")
    as_is, shorter = gather().forms(wordy, compress=True)
    assert (as_is.name, shorter.name) == ("as is", "lossless")
    assert shorter.size < as_is.size == len(wordy.prompt_text)
    assert shorter.text is not None and as_is.text is None
    assert [form.name for form in gather().forms(wordy, compress=False)] == ["as is"]
    assert [form.name for form in gather().forms(body(), compress=True)] == ["as is"]


def test_what_was_sent_is_found_again_on_that_replica_alone():
    maker = gather()
    long = body("word " * 300)
    (form,) = maker.forms(long, compress=True)
    maker.index.record(TWO, form.chain)
    (again,) = maker.facts(maker.forms(long, compress=True), long, BOTH, Live()).forms
    assert hit_share(again, TWO.id) > 0.9
    assert hit_share(again, ONE.id) == 0.0


def test_a_cache_salt_keeps_prefixes_apart():
    maker = gather()
    text = "word " * 300
    (mine,) = maker.forms(body(text, cache_salt="a"), compress=True)
    (yours,) = maker.forms(body(text, cache_salt="b"), compress=True)
    assert not set(mine.chain) & set(yours.chain)


def test_an_answer_is_expected_to_be_as_long_as_usual_but_not_longer_than_allowed():
    live, maker = Live(), gather()
    forms = maker.forms(body(), compress=True)
    assert maker.facts(forms, body(), BOTH, live).output_tokens == 200
    assert maker.facts(forms, body(max_tokens=7), BOTH, live).output_tokens == 7
    for _ in range(200):
        for pool in (SMALL, LARGE):
            learn(live, pool, 100, Usage(prompt_tokens=30, completion_tokens=50))
    assert maker.facts(forms, body(), BOTH, live).output_tokens == pytest.approx(50, abs=2)


def test_the_ratio_follows_what_long_prompts_show_and_short_ones_hardly_move_it():
    live = Live()
    for _ in range(300):
        learn(live, SMALL, 40, Usage(prompt_tokens=37))  # a template of thirty tokens around ten bytes of question
        learn(live, SMALL, 8000, Usage(prompt_tokens=1630))
    assert tokens_per_byte(live, SMALL) == pytest.approx((37 + 1630) / 8040, rel=0.1)
    assert tokens_per_byte(live, LARGE) == DEFAULT_TOKENS_PER_BYTE


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_ratio_stays_positive(size, tokens):
    live = Live()
    learn(live, SMALL, size, Usage(prompt_tokens=tokens))
    assert tokens_per_byte(live, SMALL) > 0


def test_nothing_is_learned_from_an_engine_that_says_nothing():
    live = Live()
    learn(live, SMALL, 100, Usage())
    assert not live.tokens_per_byte and not live.output_tokens


def best(gain, margin, worth=1e6):
    facts = Facts((Form("as is", 100),), {"small": 0.5, "large": 0.5 + gain}, output_tokens=10, margin=margin)
    return decide(facts, (SMALL, LARGE), Live(), worth)[0].pool.name


def test_a_gain_within_the_classifiers_own_error_is_worth_nothing_however_dear_quality_is():
    assert best(0.04, margin=0.05) == "small"
    assert best(0.06, margin=0.05) == "large"
    assert best(0.04, margin=0.0) == "large"


@given(st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 0.5))
def test_more_gain_never_turns_a_request_away_from_the_large_pool(gain, more, margin):
    if best(gain, margin, worth=20.0) == "large":
        assert best(min(0.5, gain + more), margin, worth=20.0) == "large"


def test_where_nothing_tells_two_pools_apart_the_small_one_answers():
    alike = Pool("a-large", tier="large", replicas=(TWO,), prefill_rate=1000, decode_rate=50)
    facts = Facts((Form("as is", 100),), {"small": 0.5, "a-large": 0.5})
    assert decide(facts, (alike, SMALL), Live(), 10.0)[0].pool.name == "small"
