from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning_caches import CRASH, DEFAULTS, EXPRESSION, header, row, torch_header, write

from gpt_search import InputError
from gpt_search.domain.route import Route
from gpt_search.store.tuning_cache import TORCH, TRTEXEC, CacheRow, read_tuning_cache, write_tuning_cache


def test_a_cache_of_trtexec_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", header(), row(0, 2), row(1, 0, **CRASH), row(2, 1, accuracy_loss={"y": None}))
    cache = read_tuning_cache(path)
    assert (cache.program, cache.tuner_version, cache.search) == (TRTEXEC, "2.19.45", "fast")
    assert (cache.expression, str(cache.default_route)) == (EXPRESSION, DEFAULTS)
    assert (cache.metric, cache.tolerance, cache.notes) == ("cos", 0.01, ())
    first, crash, null = cache.rows
    assert first == CacheRow(2, 0, Route.parse("-conv_lowering=on -kgen:tiling=2"), False, "", {"y": 0.001}, 0.0125)
    assert crash.crashed and crash.losses is None and crash.gpu_time_ms is None
    assert crash.error_message == "missing tuning result file"
    assert null.losses is not None and math.isnan(null.losses["y"])


def test_a_cache_of_torch_tensorrt_is_told_by_its_partition(tmp_path: Path) -> None:
    cache = read_tuning_cache(write(tmp_path / "c.jsonl", torch_header(), row(0, 2, accuracy_loss=None)))
    assert cache.program == TORCH and cache.rows[0].losses is None


def test_a_last_line_that_was_cut_is_left_out_with_a_note_any_other_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", header(), row(0, 2), '{"iter": 1, "bui', end="")
    cache = read_tuning_cache(path)
    assert len(cache.rows) == 1 and cache.notes == ("line 3 was cut off while it was written; it is left out",)
    write(path, header(), row(0, 2), '{"iter": 1, "bui')  # with its end: this was not cut
    with pytest.raises(InputError, match=r"line 3: not JSON"):
        read_tuning_cache(path)
    write(path, header(), '{"iter": 1, "bui', row(0, 2))
    with pytest.raises(InputError, match=r"line 2: not JSON"):
        read_tuning_cache(path)
    write(path, header(), row(0, 2), end="")  # whole, but for the end of its line
    assert len(read_tuning_cache(path).rows) == 1


def test_without_an_accuracy_check_there_is_no_tolerance(tmp_path: Path) -> None:
    for parameter in ({"epsilon": None}, {"epsilon": -1}, {}, None):
        path = write(tmp_path / "c.json", header(accuracy_parameter=parameter), row(0, 2))
        assert read_tuning_cache(path).tolerance is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iter": -1}, "iter is -1"),
        ({"iter": True}, "iter is true"),
        ({"build_route": 3}, "build_route is 3"),
        ({"build_route": "conv=on"}, "not of the form -name=value"),
        ({"crash": "no"}, 'crash is "no"'),
        ({"accuracy_loss": 0.1}, "accuracy_loss is 0.1"),
        ({"accuracy_loss": {"y": "a"}}, "number or null by output"),
        ({"gpu_time": 0}, "gpu_time is 0"),
        ({"gpu_time": "fast"}, 'gpu_time is "fast"'),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "c.json", header(), row(0, 2), row(1, 1, **changes))
    with pytest.raises(InputError) as caught:
        read_tuning_cache(path)
    assert f"{path}, line 3" in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize("key", ["iter", "build_route", "crash"])
def test_a_row_without_a_field_is_refused(tmp_path: Path, key: str) -> None:
    incomplete = {k: v for k, v in row(0, 2).items() if k != key}
    with pytest.raises(InputError, match=f"line 2: a row without '{key}'"):
        read_tuning_cache(write(tmp_path / "c.json", header(), incomplete))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning_expr": None}, "tuning_expr is null"),
        ({"default_build_route": None}, "c.json, line 1: the header's default_build_route is null"),
        ({"default_build_route": "x"}, "default_build_route: route token"),
        ({"tuner_version": 3}, "tuner_version is 3"),
        ({"searching_algorithm": "genetic"}, "one of fast, full, mixed"),
        ({"accuracy_algorithm": "psnr"}, "one of l0, l1, l2, lInf, cos"),
    ],
)
def test_a_header_that_is_wrong_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_tuning_cache(write(tmp_path / "c.json", header(**changes), row(0, 2)))
    assert str(caught.value).count("line 1") == 1 and message in str(caught.value)


def test_what_is_no_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_tuning_cache(tmp_path / "none.json")
    (tmp_path / "empty.json").write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        read_tuning_cache(tmp_path / "empty.json")
    (tmp_path / "list.json").write_text("[1, 2]\n")
    with pytest.raises(InputError, match=r"line 1: \[1, 2\] is no JSON object"):
        read_tuning_cache(tmp_path / "list.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_tuning_cache(tmp_path / "binary.json")


ROWS = st.builds(
    lambda tiling, crashed, losses, time: CacheRow(
        0,
        0,
        Route.parse(f"-kgen:tiling={tiling}"),
        crashed,
        "lost" if crashed else "",
        None if crashed else losses,
        None if crashed else time,
    ),
    st.integers(0, 9),
    st.booleans(),
    st.none() | st.dictionaries(st.text(min_size=1, max_size=5), st.floats(0, 1e6) | st.just(math.inf), max_size=3),
    st.none() | st.floats(1e-6, 1e6),
)


@given(st.lists(ROWS, max_size=6))
def test_what_is_written_is_read_back(rows: list[CacheRow]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        size = write_tuning_cache(path, header(), rows)
        assert path.stat().st_size == size
        found = read_tuning_cache(path).rows
    assert len(found) == len(rows)
    for one, other in zip(rows, found, strict=True):
        assert (one.route, one.crashed, one.error_message) == (other.route, other.crashed, other.error_message)
        assert one.gpu_time_ms == other.gpu_time_ms
        if one.losses is None:
            assert other.losses is None
        else:
            assert other.losses is not None and one.losses.keys() == other.losses.keys()
            for name, loss in one.losses.items():
                back = other.losses[name]
                assert back == loss or (not math.isfinite(loss) and math.isnan(back))


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", header())
    with pytest.raises(InputError, match="cannot write"):
        write_tuning_cache(path, header(), [])
