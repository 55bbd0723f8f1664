"""What becomes of a turn in which the GPU was throttled, by policy. The readings are made up."""

from __future__ import annotations

import pytest

from gpt_search.backends import tensorrt_throttle
from gpt_search.backends.nvml import NvmlError, Reading
from gpt_search.backends.tensorrt_throttle import Watch, described
from gpt_search.domain.errors import InputError

COOL = Reading(1980.0, 3201.0, 42.0, 128.0, 0, {"power": 10**9, "thermal": 0})
IDLE = Reading(345.0, 3201.0, 41.0, 75.0, 0x1, {"power": 10**9, "thermal": 0})
CAPPED = Reading(1500.0, 3201.0, 70.0, 699.0, 0x4, {"power": 10**9 + 15_000_000, "thermal": 0})
CAPPED_BETWEEN = Reading(1980.0, 3201.0, 42.0, 128.0, 0, {"power": 10**9 + 15_000_000, "thermal": 0})


class Readings:
    def __init__(self, *readings):
        self.left = list(readings)

    def read(self):
        return self.left.pop(0)


def turn(policy, *readings):
    watch = Watch(policy, Readings(*readings))
    with watch:
        watch.look()
    return watch


def test_a_turn_in_good_order_is_described_and_stands():
    watch = turn("repeat", IDLE, COOL, COOL)
    assert watch.again == ""
    assert watch.device == {
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "temperature_c": 42.0,
        "power_w": 128.0,
        "throttle_reasons": 0.0,
        "slowed_power_ms": 0.0,
        "slowed_thermal_ms": 0.0,
        "throttled": 0.0,
    }


def test_mark_keeps_the_turn_and_says_that_it_was_throttled():
    watch = turn("mark", COOL, CAPPED, CAPPED)
    assert watch.again == "" and watch.device["throttled"] == 1
    assert watch.device["throttle_reasons"] == 4 and watch.device["slowed_power_ms"] == 15


def test_repeat_asks_for_the_round_again_with_the_reason():
    assert turn("repeat", COOL, CAPPED, COOL).again == "the GPU was throttled: power cap"


def test_the_counters_catch_what_happened_between_two_looks():
    watch = turn("repeat", COOL, COOL, CAPPED_BETWEEN)
    assert watch.again == "the GPU was throttled: by its own counters" and watch.device["throttle_reasons"] == 0


def test_refuse_ends_timing_with_one_line():
    with pytest.raises(InputError, match=r"throttled: power cap; the option throttle=refuse"):
        turn("refuse", COOL, CAPPED, COOL)


def test_the_error_of_a_turn_is_not_hidden_by_its_throttling():
    watch = Watch("refuse", Readings(COOL, CAPPED, CAPPED))
    with pytest.raises(ValueError, match="mine"), watch:
        watch.look()
        raise ValueError("mine")


def test_a_good_turn_after_a_throttled_one_starts_anew():
    watch = Watch("repeat", Readings(COOL, CAPPED, COOL, COOL, COOL, COOL))
    for again in ("the GPU was throttled: power cap", ""):
        with watch:
            watch.look()
        assert watch.again == again


def test_what_the_gpu_does_not_say_is_left_out():
    assert described(Reading(), Reading(), Reading()) == {}
    assert described(Reading(), Reading(reasons=2), Reading(reasons=1)) == {"throttle_reasons": 3.0, "throttled": 0.0}


@pytest.mark.parametrize("policy", ["repeat", "refuse"])
def test_a_policy_that_needs_nvml_says_so_where_there_is_none(policy, monkeypatch):
    def no_gpu(identity):
        raise NvmlError("NVML cannot be used: no driver")

    monkeypatch.setattr(tensorrt_throttle, "device_uuid", lambda: "x")
    monkeypatch.setattr(tensorrt_throttle, "device_id", lambda uuid: f"GPU-{uuid}")
    monkeypatch.setattr(tensorrt_throttle, "Gpu", no_gpu)
    with pytest.raises(InputError, match=f"throttle={policy} needs NVML"):
        Watch(policy)
    with Watch("mark") as watch:
        watch.look()
    assert watch.device == {} and watch.again == ""
