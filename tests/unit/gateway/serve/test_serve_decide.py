from hypothesis import assume, given
from hypothesis import strategies as st

from backends.types import Load, Replica, ReplicaId
from gateway.serve.catalog import Live, Pool
from gateway.serve.decide import Facts, Form, decide

REPLICAS = {
    "small": tuple(Replica(ReplicaId(f"s{n}"), "", "s", slots=4) for n in range(3)),
    "large": tuple(Replica(ReplicaId(f"l{n}"), "", "l", slots=2) for n in range(2)),
    "asleep": (),
}
SMALL = Pool("small", replicas=REPLICAS["small"], decode_rate=100.0)
LARGE = Pool("large", replicas=REPLICAS["large"], price=8.0, decode_rate=40.0, tier="large")
ASLEEP = Pool("asleep", scalable=True, cold_start=7.0)
POOLS = [SMALL, LARGE, ASLEEP]
NAMES = [replica.id for pool in POOLS for replica in pool.replicas]

held = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 40_000))
sizes = st.integers(1, 40_000)
first_forms = st.builds(Form, name=st.just("as is"), size=sizes, held=held)
other_forms = st.builds(
    Form, name=st.sampled_from(["lossless", "extractive"]), size=sizes, held=held, loss=st.floats(0, 1)
)
facts = st.builds(
    lambda first, others, small, large, asleep, output: Facts(
        (first, *others), {"small": small, "large": large, "asleep": asleep}, {}, output
    ),
    first_forms,
    st.lists(other_forms, max_size=2, unique_by=lambda form: form.name),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 4000),
)
worths = st.floats(0, 1000)


@st.composite
def lives(draw):
    live = Live()
    live.inflight.update(draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 50))))
    live.waiting.update(draw(st.dictionaries(st.sampled_from(["small", "large", "asleep"]), st.integers(1, 50))))
    live.blocked.update(draw(st.sets(st.sampled_from(NAMES))))
    live.loads.update(
        draw(st.dictionaries(st.sampled_from(NAMES), st.builds(Load, st.integers(0, 20), st.integers(0, 20))))
    )
    return live


def name(plan):
    return plan.replica.id if plan.replica else None


@given(facts, lives(), worths)
def test_every_way_is_there_once_and_the_cheapest_first(known, live, worth):
    plans = decide(known, POOLS, live, worth)
    first, *others = known.forms
    forms = [first, *(form for form in others if form.size < first.size)]
    expected = {
        (pool.name, replica, form.name)
        for pool in POOLS
        for form in forms
        for replica in (
            [one.id for one in pool.replicas if one.id not in live.blocked] or ([None] if pool.scalable else [])
        )
    }
    seen = [(plan.pool.name, name(plan), plan.form.name) for plan in plans]
    assert set(seen) == expected
    assert len(seen) == len(expected)
    costs = [plan.because.cost for plan in plans]
    assert costs == sorted(costs)
    assert all(cost >= 0 for cost in costs)


@given(facts, lives(), worths)
def test_a_replica_that_is_held_back_is_never_chosen(known, live, worth):
    assert not live.blocked & {name(plan) for plan in decide(known, POOLS, live, worth)}


@given(facts, lives(), worths)
def test_a_form_that_removes_nothing_is_never_chosen(known, live, worth):
    first = known.forms[0]
    for plan in decide(known, POOLS, live, worth):
        assert plan.form is first or plan.form.size < first.size


@given(facts, lives(), worths)
def test_the_same_facts_give_the_same_plans_whatever_the_order_of_pools(known, live, worth):
    assert decide(known, POOLS, live, worth) == decide(known, POOLS[::-1], live, worth)


def cheapest(plans, replica):
    """Where in the order the replica first comes, and what it costs there."""
    return next((place, plan.because.cost) for place, plan in enumerate(plans) if name(plan) == replica)


@given(facts, lives(), worths, st.sampled_from(NAMES), st.integers(1, 50))
def test_more_load_never_attracts(known, live, worth, replica, extra):
    assume(replica not in live.blocked)
    place, cost = cheapest(decide(known, POOLS, live, worth), replica)
    live.inflight[replica] = live.inflight.get(replica, 0) + extra
    later, dearer = cheapest(decide(known, POOLS, live, worth), replica)
    assert later >= place
    assert dearer >= cost


@given(facts, lives(), worths, st.sampled_from(NAMES), st.integers(1, 20_000))
def test_more_of_the_prompt_in_its_cache_never_repels(known, live, worth, replica, extra):
    assume(replica not in live.blocked)
    place, cost = cheapest(decide(known, POOLS, live, worth), replica)
    more = tuple(
        Form(form.name, form.size, {**form.held, replica: form.held.get(replica, 0) + extra}, form.loss)
        for form in known.forms
    )
    sooner, cheaper = cheapest(
        decide(Facts(more, known.acceptable, known.tokens_per_byte, known.output_tokens), POOLS, live, worth), replica
    )
    assert sooner <= place
    assert cheaper <= cost


@given(facts, lives(), worths)
def test_a_pool_at_zero_is_a_candidate_that_costs_its_cold_start(known, live, worth):
    plans = [plan for plan in decide(known, POOLS, live, worth) if plan.pool is ASLEEP]
    assert plans
    for plan in plans:
        assert plan.replica is None
        assert plan.because.wait == 0
        assert plan.because.cold_start >= ASLEEP.cold_start


def test_a_pool_at_zero_that_nothing_can_start_is_no_candidate():
    known = Facts((Form("as is", 100),), {"p": 1.0})
    assert decide(known, [Pool("p")], Live(), 1.0) == []


def test_a_pool_whose_replicas_are_all_held_back_may_be_given_another():
    live = Live()
    live.blocked.update(replica.id for replica in SMALL.replicas)
    known = Facts((Form("as is", 100),), {"small": 1.0})
    scalable = Pool("small", replicas=SMALL.replicas, scalable=True)
    assert [name(plan) for plan in decide(known, [scalable], live, 1.0)] == [None]
    assert decide(known, [SMALL], live, 1.0) == []


def best(known, live, worth=1.0, pools=(SMALL, LARGE)):
    return decide(known, pools, live, worth)[0]


def test_a_hard_prompt_goes_to_the_large_pool_when_quality_is_worth_it():
    known = Facts((Form("as is", 2000),), {"small": 0.2, "large": 0.9})
    assert best(known, Live(), worth=1.0).pool is SMALL
    assert best(known, Live(), worth=1000.0).pool is LARGE


def test_a_miss_goes_to_the_least_loaded():
    live = Live()
    live.inflight.update({ReplicaId("s0"): 3, ReplicaId("s1"): 1, ReplicaId("s2"): 2})
    assert name(best(Facts((Form("as is", 2000),), {"small": 1.0}), live)) == "s1"


def test_a_hot_replica_loses_affinity_for_this_request():
    live = Live()
    known = Facts((Form("as is", 8000, {ReplicaId("s2"): 7900}),), {"small": 1.0})
    assert name(best(known, live)) == "s2"
    live.inflight[ReplicaId("s2")] = 40
    assert name(best(known, live)) == "s0"


def test_compression_that_throws_away_the_cache_is_not_chosen():
    kept = Form("as is", 16_000, {ReplicaId("s2"): 15_600})
    known = Facts((kept, Form("lossless", 9000)), {"small": 1.0})
    live = Live()
    assert best(known, live).form.name == "as is"
    live.inflight[ReplicaId("s2")] = 40
    assert (best(known, live).form.name, name(best(known, live))) == ("lossless", "s0")


def test_what_the_server_says_of_others_requests_counts():
    live = Live()
    live.loads[ReplicaId("s0")] = Load(running=4, waiting=10)
    assert name(best(Facts((Form("as is", 2000),), {"small": 1.0}), live)) == "s1"


def test_ties_go_by_requests_then_name_then_form():
    known = Facts((Form("as is", 100),), {"small": 1.0}, output_tokens=0)
    live = Live()
    assert [name(plan) for plan in decide(known, [SMALL], live, 1.0)] == ["s0", "s1", "s2"]
    live.inflight[ReplicaId("s0")] = 1
    assert [name(plan) for plan in decide(known, [SMALL], live, 1.0)] == ["s1", "s2", "s0"]


@given(facts, lives(), worths)
def test_the_terms_shown_are_the_cost(known, live, worth):
    for plan in decide(known, POOLS, live, worth):
        because = plan.because
        terms = (because.wait, because.cold_start, because.prefill, because.decode, because.shortfall)
        assert sum(terms) == because.cost
        assert all(term >= 0 for term in terms)
