"""Before a GPU is timed on: what is in the way of steady numbers, as findings in plain words.

The judgement is plain code over facts, so that it can be tested anywhere; `gpu_findings` collects the facts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpt_search.backends.nvml import Gpu, GpuFacts, NvmlError, reason_names, slowed_down, visible_id

_HOT_C = 10  # within so many degrees of the slowdown temperature


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ok: nothing to do. text: what was found and, if not ok, what to do about it."""

    about: str
    ok: bool
    text: str


def judge(facts: GpuFacts, environment: Mapping[str, str], own: Collection[int] = ()) -> list[Finding]:
    """The findings for one GPU.

    environment: variables of the process that will use it. own: ids of processes that are ours.
    """
    return [
        _processes(facts, own),
        _mps(facts),
        _mig(facts),
        _power(facts),
        _clocks(facts),
        _heat(facts),
        _loading(environment),
    ]


def gpu_findings(identity: str | None = None, own: Collection[int] = ()) -> tuple[GpuFacts, list[Finding]]:
    """Facts and findings for a GPU; identity: by default the one that CUDA takes first here.

    Raises NvmlError when NVML or the GPU is not there.
    """
    identity = identity or visible_id()
    if identity is None:
        raise NvmlError("CUDA_VISIBLE_DEVICES hides every GPU from this process")
    facts = Gpu(identity).facts()
    return facts, judge(facts, os.environ, own)


def _processes(facts: GpuFacts, own: Collection[int]) -> Finding:
    others = [(pid, size) for pid, size in facts.processes if pid not in own]
    if not others:
        return Finding("other processes", True, "none")
    words = ", ".join(f"{pid}" + ("" if size is None else f" ({size:.0f} MB)") for pid, size in others)
    text = f"{len(others)} on this GPU: process {words}. They disturb builds and timing: end them, or use another GPU"
    return Finding("other processes", False, text)


def _mps(facts: GpuFacts) -> Finding:
    if not facts.mps:
        return Finding("MPS", True, "not running")
    text = "running: several processes may share the GPU at a time; stop it (echo quit | nvidia-cuda-mps-control)"
    return Finding("MPS", False, text)


def _mig(facts: GpuFacts) -> Finding:
    if facts.mig is None:
        return Finding("MIG", True, "a whole GPU")
    if facts.mig == "on":
        text = "the GPU is in MIG mode and cannot be used whole; name a slice in CUDA_VISIBLE_DEVICES=MIG-..."
        return Finding("MIG", False, text)
    text = f"a slice of {facts.mig}: it shares clocks and power with its neighbours, so keep those idle"
    return Finding("MIG", False, text)


def _power(facts: GpuFacts) -> Finding:
    cap, default = facts.power_cap_w, facts.power_default_w
    if cap is None:
        return Finding("power cap", True, "not readable here")
    if default is not None and cap < default:
        text = f"{cap:.0f} W, below the default of {default:.0f} W: results hold for this cap; nvidia-smi -pl sets it"
        return Finding("power cap", False, text)
    return Finding("power cap", True, f"{cap:.0f} W" + (", the default" if cap == default else ""))


def _clocks(facts: GpuFacts) -> Finding:
    if facts.clock_setting is None:
        return Finding("clocks", True, "not readable here")
    if facts.clock_setting:
        return Finding("clocks", True, "held by a setting (application or locked clocks)")
    top = "" if facts.sm_clock_max_mhz is None else f" up to {facts.sm_clock_max_mhz:.0f} MHz"
    text = (
        f"free{top}: they follow heat and power. Pairing takes most of that out; "
        "nvidia-smi -lgc MHZ, with a clock that the GPU holds under load, steadies them"
    )
    return Finding("clocks", False, text)


def _heat(facts: GpuFacts) -> Finding:
    reasons = facts.reasons or 0
    if slowed_down(reasons):
        text = f"slowed down now: {', '.join(reason_names(reasons))}; wait, cool it, or raise the limit"
        return Finding("throttling", False, text)
    now, limit = facts.temperature_c, facts.temperature_slowdown_c
    if now is not None and limit is not None and now > limit - _HOT_C:
        return Finding("throttling", False, f"{now:.0f} C, close to the {limit:.0f} C at which the GPU slows down")
    return Finding("throttling", True, "none" + ("" if now is None else f", {now:.0f} C"))


def _loading(environment: Mapping[str, str]) -> Finding:
    mode = environment.get("CUDA_MODULE_LOADING", "").upper()
    if mode == "EAGER":
        text = "CUDA_MODULE_LOADING=EAGER: all kernels of the libraries load at the start and take memory; unset it"
        return Finding("module loading", False, text)
    return Finding("module loading", True, "lazy: kernels load at their first launch, which is never timed")
