"""What the preflight makes of a GPU's facts. The facts of a real one are read in test_tensorrt_gpu."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpt_search.backends.gpu_preflight import judge
from gpt_search.backends.nvml import GpuFacts, reason_names, slowed_down

# As an NVIDIA H200 answered.
GOOD = GpuFacts(
    "GPU-3163ae8e-123a-9817-8c2d-57f4857b8a0f",
    "NVIDIA H200",
    "580.159.04",
    150754.8,
    "9.0",
    power_cap_w=700.0,
    power_default_w=700.0,
    clock_setting=True,
    sm_clock_max_mhz=1980.0,
    temperature_c=42.0,
    temperature_slowdown_c=89.0,
    reasons=0,
)


def findings(facts=GOOD, environment=None, own=()):
    return {f.about: f for f in judge(facts, environment or {}, own)}


def test_a_gpu_in_order_gives_no_warning():
    assert [f for f in findings().values() if not f.ok] == []


@pytest.mark.parametrize(
    ("change", "about", "words"),
    [
        ({"processes": ((7, 556.0), (8, None))}, "other processes", "2 on this GPU: process 7 (556 MB), 8."),
        ({"mps": True}, "MPS", "nvidia-cuda-mps-control"),
        ({"mig": "on"}, "MIG", "CUDA_VISIBLE_DEVICES=MIG-"),
        ({"mig": "GPU-parent"}, "MIG", "a slice of GPU-parent: it shares clocks and power"),
        ({"power_cap_w": 500.0}, "power cap", "500 W, below the default of 700 W"),
        ({"clock_setting": False}, "clocks", "free up to 1980 MHz"),
        ({"reasons": 0x24}, "throttling", "slowed down now: power cap, thermal limit (software)"),
        ({"temperature_c": 80.0}, "throttling", "80 C, close to the 89 C"),
    ],
)
def test_what_is_in_the_way_is_said_with_what_to_do(change, about, words):
    found = findings(replace(GOOD, **change))
    assert [f.about for f in found.values() if not f.ok] == [about]
    assert words in found[about].text


def test_our_own_processes_are_none_of_the_others():
    assert findings(replace(GOOD, processes=((7, 1.0),)), own=[7])["other processes"].ok


def test_eager_loading_is_named():
    assert not findings(environment={"CUDA_MODULE_LOADING": "EAGER"})["module loading"].ok
    assert findings(environment={"CUDA_MODULE_LOADING": "lazy"})["module loading"].ok


def test_a_gpu_that_answers_nothing_is_no_cause_for_alarm():
    found = findings(GpuFacts("MIG-x", "slice", "580"))
    assert all(f.ok for f in found.values()) and "not readable" in found["clocks"].text


@pytest.mark.parametrize(
    ("reasons", "slow"), [(0, False), (0x1 | 0x2 | 0x10 | 0x100, False), (0x4, True), (0x81, True)]
)
def test_idling_and_settings_are_no_throttling(reasons, slow):
    assert slowed_down(reasons) is slow
    assert bool(reason_names(reasons)) is slow
