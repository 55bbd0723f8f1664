"""Planted landscapes, by the name that studies use them under.

They live in the domain because the synthetic backend, which may not import `search`, wraps one too.
"""

from __future__ import annotations

from gpt_search.domain.landscape import FAMILIES, planted, planted_from_spec
from gpt_search.domain.landscape_model import Landscape

__all__ = ["FAMILIES", "Landscape", "planted", "planted_from_spec"]
