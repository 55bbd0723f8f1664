"""Hypothesis without deadlines: how long an example takes says nothing on a shared machine."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
