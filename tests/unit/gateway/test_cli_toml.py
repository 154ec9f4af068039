"""What is written as TOML reads back as it was."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.toml import dumps

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
values = st.recursive(
    scalars,
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(names, below, max_size=3)),
    max_leaves=12,
)


@given(st.dictionaries(names, values, max_size=4))
def test_round_trip(tree):
    assert tomllib.loads(dumps(tree)) == tree


def test_looks_as_a_person_would_write_it():
    tree = {
        "data": "/d",
        "gateway": {"port": 1, "host": None},
        "keys": [{"name": "a"}, {"name": "b"}],
        "pools": {"small": {"minimum": 1, "urls": ["x", "y"], "my model": {"q": "1"}}},
    }
    assert dumps(tree) == (
        'data = "/d"\n\n[gateway]\nport = 1\n\n[[keys]]\nname = "a"\n\n[[keys]]\nname = "b"\n\n[pools]\n\n'
        '[pools.small]\nminimum = 1\nurls = ["x", "y"]\n\n[pools.small."my model"]\nq = "1"\n'
    )


def test_what_has_no_form_is_refused():
    with pytest.raises(TypeError, match="object"):
        dumps({"a": object()})
