"""For all tests: Hypothesis without deadlines. How long an example takes says nothing on a shared machine."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
