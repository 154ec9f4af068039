"""What every test shares: property tests without a time limit, since machines differ, and few examples, since there are many."""

from hypothesis import settings

settings.register_profile("turnout", max_examples=40, deadline=None)
settings.load_profile("turnout")
