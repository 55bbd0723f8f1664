"""From routes to settings: values reach the runtime as meant, inert ones are normalised away."""

from __future__ import annotations

import pytest

from gpt_search.backends.base import BuildError
from gpt_search.backends.onnxruntime_catalogue import SETTINGS, Target, database_for
from gpt_search.backends.onnxruntime_settings import Settings
from gpt_search.domain.route import Route

DATABASE = database_for("test")


def settings_of(route: str) -> Settings:
    return Settings.of(Route.parse(route), DATABASE)


def part(route: str, cores: int = 2) -> dict[str, str]:
    return settings_of(route).runtime_part(cores)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.target is Target.CONFIG], ids=lambda s: s.name)
def test_config_values_reach_the_session_options(setting: object) -> None:
    from gpt_search.backends.onnxruntime_catalogue import Setting

    assert isinstance(setting, Setting)
    for value, sent in setting.sends.items():
        options = settings_of(f"-{setting.name}={value}").session_options()
        if sent is None:
            with pytest.raises(RuntimeError):
                options.get_session_config_entry(setting.key)
        else:
            assert options.get_session_config_entry(setting.key) == sent


def test_option_values_reach_the_session_options() -> None:
    import onnxruntime

    options = settings_of(
        "-session:graph_level=basic -session:execution_mode=parallel -session:intra_threads=4 "
        "-session:inter_threads=3 -session:mem_pattern=off -session:mem_reuse=off -session:cpu_arena=off "
        "-session:execution_order=priority -session:deterministic_compute=on"
    ).session_options()
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.execution_order == onnxruntime.ExecutionOrder.PRIORITY_BASED
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (4, 3)
    assert not (options.enable_mem_pattern or options.enable_mem_reuse or options.enable_cpu_mem_arena)
    assert options.use_deterministic_compute


def test_defaults_are_the_runtimes_own() -> None:
    import onnxruntime

    ours, plain = settings_of("").session_options(), onnxruntime.SessionOptions()
    for setting in SETTINGS:
        if setting.target is Target.OPTION and setting.key != "graph_optimization_level":
            assert getattr(ours, setting.key) == getattr(plain, setting.key), setting.name
        if setting.target is Target.CONFIG:
            assert setting.sends[setting.default] is None, setting.name
    assert ours.graph_optimization_level == plain.graph_optimization_level


def test_switches_name_the_optimiser() -> None:
    made = settings_of("-rule:ConvAddFusion=off -opt:SkipLayerNormFusion=off -opt:AttentionFusion=on")
    assert made.disabled == ("ConvAddFusion", "SkipLayerNormFusion")


@pytest.mark.parametrize("route", ["-banana=1", "-session:cpu_arena=maybe", "-opt:AttentionFusion=1"])
def test_unknown_knobs_and_values_are_refused(route: str) -> None:
    with pytest.raises(BuildError, match=r"unknown knob|not among"):
        settings_of(route)


def test_settings_survive_json() -> None:
    made = settings_of("-rule:ConvAddFusion=off -session:intra_threads=4 -model:quantize_dynamic=s8")
    assert Settings.from_json(made.to_json()) == made
    with pytest.raises(KeyError):
        Settings.from_json({"values": {"session:intra_threads": "banana"}, "disabled": []})


def test_thread_counts_are_resolved_but_pinning_is_told_apart() -> None:
    assert part("") != part("-session:intra_threads=2")  # 0 also pins the threads to their cores
    parallel = "-session:execution_mode=parallel "
    assert part(parallel) == part(parallel + "-session:intra_threads=2 -session:inter_threads=2")
    assert part("", cores=1) == part("-session:intra_threads=1", cores=1)
    assert part("", cores=4) != part("", cores=2)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("", "-session:inter_threads=4 -session:inter_spin_us=50 -session:inter_spin_backoff=8"),
        ("-session:intra_threads=1", "-session:intra_threads=1 -session:intra_spinning=off"),
        ("-session:intra_spinning=off", "-session:intra_spinning=off -session:intra_spin_us=50"),
        ("-session:intra_spinning=off", "-session:intra_spinning=off -session:force_spinning_stop=on"),
        ("-session:cpu_arena=off", "-session:cpu_arena=off -run:arena_shrinkage=on"),
        ("", "-opt:SkipLayerNormFusion=off -session:gelu_approximation=on -input:free_dims=fixed"),
        (
            "-session:execution_mode=parallel",
            "-session:execution_mode=parallel -session:execution_order=priority",
        ),
    ],
)
def test_inert_settings_are_left_out(one: str, same: str) -> None:
    assert part(one) == part(same)


def test_arena_shrinkage_needs_an_arena() -> None:
    assert settings_of("-run:arena_shrinkage=on").run_options() is not None
    assert settings_of("-run:arena_shrinkage=on -session:cpu_arena=off").run_options() is None
    assert settings_of("").run_options() is None
