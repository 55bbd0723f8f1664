"""The tables in paper/data are whole, complete, small, and what their checksums say."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gpt_search.store.tables import load_table

DATA = Path(__file__).parents[2] / "paper" / "data"
SUMS = dict(reversed(line.split()) for line in (DATA / "SHA256SUMS").read_text().splitlines())
MB = 1_000_000


def test_every_table_has_a_checksum() -> None:
    assert sorted(SUMS) == sorted(p.name for p in DATA.glob("*.jsonl*")) and len(SUMS) >= 2


@pytest.mark.parametrize("name", sorted(SUMS))
def test_a_shipped_table_is_complete_and_small(name: str) -> None:
    data = (DATA / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == SUMS[name] and len(data) < 5 * MB
    table = load_table(DATA / name)
    assert table.complete and len(table) >= 1000
    assert table.between_builds is not None and table.between_builds.deviation < 0.1
