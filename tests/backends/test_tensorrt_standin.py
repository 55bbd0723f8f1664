"""Build routes, played over TensorRT-RTX: no machine of ours has a library with real ones.

THIS IS A STAND-IN. Everything is the real TensorRT-RTX except two attributes of its builder configuration:
`all_build_routes` gives the recorded database of TensorRT 11.1.0, and `build_route` takes a route of known names
and values and drops any other one in silence, as the real setter does. The routes change nothing in the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorrt_rtx_bindings
from tensorrt_models import mlp

from gpt_search.backends.base import BuildError, BuildOptions
from gpt_search.backends.tensorrt import LIBRARIES, Library, TensorRTBackend
from gpt_search.backends.tensorrt_file import EngineFile
from gpt_search.domain.errors import InputError
from gpt_search.domain.knob import KnobDatabase
from gpt_search.domain.route import Route

FACTS = Path(__file__).parents[1] / "data" / "tensorrt_11_1_0_knobs.tsv"


def recorded() -> str:
    """The recorded database in the form of `all_build_routes`."""
    import json

    rows = [line.split("\t") for line in FACTS.read_text().splitlines() if not line.startswith("#")]
    [version] = [row[1] for row in rows if len(row) == 2]
    options = [
        {"option": f"-{row[0]}", "allowed_values": f"-{row[0]}={row[1]}", "default_value": row[2], "help": ""}
        for row in rows
        if len(row) == 3
    ]
    return json.dumps({"tuner_version": version, "tuner_options": options})


class Config:
    """The real configuration, but for the two attributes."""

    def __init__(self, real: Any, database: str) -> None:
        self.__dict__.update(real=real, all_build_routes=database, route="")

    def __getattr__(self, name: str) -> Any:
        return self.route if name == "build_route" else getattr(self.real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "build_route":
            setattr(self.real, name, value)
            return
        database = KnobDatabase.from_json(self.all_build_routes)
        route = Route.parse(value)
        if all(knob in database and database[knob].check(v) is None for knob, v in route.items()):
            self.__dict__["route"] = value


class Builder:
    def __init__(self, real: Any, database: str) -> None:
        self.real, self.database = real, database
        self.configs: list[Config] = []

    def create_builder_config(self) -> Config:
        self.configs.append(Config(self.real.create_builder_config(), self.database))
        return self.configs[-1]

    def build_serialized_network(self, network: Any, config: Config) -> Any:
        return self.real.build_serialized_network(network, config.real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Played(TensorRTBackend):
    """The full-TensorRT backend over TensorRT-RTX, with the stand-in in place of its builder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, database: str) -> None:
        library = Library("tensorrt", "TensorRT", ("tensorrt_rtx_bindings",), "nothing")
        monkeypatch.setitem(LIBRARIES, "tensorrt", library)
        super().__init__("tensorrt")
        self.played = Builder(super()._builder(), database)

    def _builder(self) -> Any:
        return self.played


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch, recorded())


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_a_route_is_set_and_read_back(played: Played, tmp_path: Path) -> None:
    database = played.knob_database()
    assert len(database) == 209 and database.tuner_version == "2.19.45"
    route = Route.parse("-conv_use_long_w=off")
    assert "conv_use_long_w" in database
    engine = played.build(mlp(tmp_path), route, BuildOptions({"timing_cache": "none"}))
    assert played.played.configs[-1].build_route == "-conv_use_long_w=off"
    assert EngineFile.from_bytes(engine.save()).plan


@pytest.mark.parametrize("route", ["-conv_use_long=off", "-conv_use_long_w=maybe"])
def test_a_route_that_is_dropped_in_silence_is_a_build_error(played: Played, tmp_path: Path, route: str) -> None:
    with pytest.raises(BuildError, match=r"refused the build route: set to .* it reads back as ''"):
        played.build(mlp(tmp_path), Route.parse(route), BuildOptions({"timing_cache": "none"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cuda_graph_strategy": "disabled"}, "tensorrt has no option cuda_graph_strategy: it is TensorRT-RTX's"),
        ({"dynamic_shapes_kernel_specialization_strategy": "lazy"}, "tensorrt has no option dynamic_shapes_kernel"),
        ({"compute_capability": "8.9"}, "tensorrt has no option compute_capability"),
    ],
)
def test_options_of_tensorrt_rtx_are_refused(
    played: Played, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        played.check_options(options)
    with pytest.raises(InputError, match=message):
        played.build(mlp(tmp_path), Route(()), BuildOptions(options))


def test_where_a_builder_can_be_made_engines_can_run(played: Played) -> None:
    """TensorRT's needs a GPU: nothing is built to find that out, beside a study that times."""
    assert played.cannot_run() is None and not played.played.configs


def test_what_a_study_keeps_is_checked_again(played: Played) -> None:
    """`resume`, `confirm`, `minimise` and `rejudge` give the stored options, the cache's file among them."""
    kept = played.check_options({"profiles": [{"x": "1x16:4x16:8x16"}], "weight_streaming": True})
    stored = kept | {"timing_cache_file": "/study.cache", "timing_cache_digest": "0" * 64}
    assert played.check_options(stored) == stored


def test_without_routes_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    version = tensorrt_rtx_bindings.__version__
    with pytest.raises(InputError, match=f"TensorRT {version} lists no build routes.*tensorrt-cu13>=11.1.*plan"):
        Played(monkeypatch, "").knob_database()


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_timing_caches_frozen_and_shared(played: Played, tmp_path: Path) -> None:
    """TensorRT-RTX keeps nothing in its timing cache, so what is tested is where caches come from and go to."""
    workload, route = mlp(tmp_path), Route.parse("-conv_use_long_w=off")
    path = tmp_path / "caches" / "study.cache"
    played.build(workload, route, BuildOptions({"timing_cache_file": str(path)}))
    frozen = path.read_bytes()
    assert frozen
    path.write_bytes(frozen + b"\0" * 8)  # would be written anew if a build merged its cache back
    played.build(workload, route, BuildOptions({"timing_cache_file": str(path)}))
    assert path.read_bytes() == frozen + b"\0" * 8
    with pytest.raises(InputError, match=r"frozen timing cache .*study\.cache is not what it was"):
        given = {"timing_cache_file": str(path), "timing_cache_digest": "0" * 64}
        played.build(workload, route, BuildOptions(given))
    path.write_bytes(frozen + b"\0" * 8)
    played.build(workload, route, BuildOptions({"timing_cache_file": str(path), "timing_cache": "shared"}))
    assert path.read_bytes() == frozen
