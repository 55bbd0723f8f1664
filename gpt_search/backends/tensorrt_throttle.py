"""What the GPU did during one turn of timing, and what follows where it was slowed down.

The policy is the option `throttle`: `mark` keeps the round and records that it was throttled, `repeat` asks for
the round again (the number of such rounds is recorded), `refuse` ends with an InputError.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from gpt_search.backends.cuda_runtime import device_uuid
from gpt_search.backends.nvml import Gpu, NvmlError, Reading, device_id, reason_names, slowed_down
from gpt_search.domain.errors import InputError

_SLOWED_NS = 1_000_000  # a millisecond: the counters tick in coarser steps than that


class Watch:
    """Looks at the GPU around and during each turn: `with watch: ... watch.look() ...`.

    device: what was seen in the last turn, by name (MHz, degrees C, W). again: why the round should be taken
    again, else empty.
    """

    def __init__(self, policy: str, gpu: Gpu | None = None) -> None:
        """policy: mark, repeat or refuse. gpu: by default the one that CUDA uses first.

        Raises InputError when NVML cannot be used and the policy needs it.
        """
        self._policy = policy
        self._gpu = gpu
        if gpu is None:
            try:
                self._gpu = Gpu(device_id(device_uuid()))
            except NvmlError as error:
                if policy != "mark":
                    raise InputError(f"the option throttle={policy} needs NVML: {error}") from None
        self.device: dict[str, float] = {}
        self.again = ""
        self._before: Reading | None = None
        self._during: Reading | None = None

    def __enter__(self) -> Self:
        self._during = None
        self._before = self._gpu.read() if self._gpu is not None else None
        return self

    def look(self) -> None:
        """Reads once, while the device is busy: clocks fall as soon as it idles."""
        if self._gpu is not None:
            self._during = self._gpu.read()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._gpu is not None and self._before is not None:
            self._judge(self._before, self._during, self._gpu.read())

    def _judge(self, before: Reading, during: Reading | None, after: Reading) -> None:
        busy = during or after
        self.device, self.again = described(before, busy, after), ""
        if not self.device.get("throttled"):
            return
        reasons = int(self.device.get("throttle_reasons", 0.0))
        why = "the GPU was throttled: " + (", ".join(reason_names(reasons)) or "by its own counters")
        if self._policy == "repeat":
            self.again = why
        elif self._policy == "refuse":
            raise InputError(f"{why}; the option throttle=refuse ends timing here: wait, cool it, or raise the limit")


def described(before: Reading, busy: Reading, after: Reading) -> dict[str, float]:
    """What goes into a round's record; what the GPU does not say is left out.

    throttle_reasons: NVML's bit mask over the readings taken while busy and at the end. throttled: 1 where a
    reason is heat or power, or the GPU's own counters grew. slowed_..._ms: how much those grew.
    """
    values = {
        "sm_clock_mhz": busy.sm_clock_mhz,
        "memory_clock_mhz": busy.memory_clock_mhz,
        "temperature_c": after.temperature_c,
        "power_w": busy.power_w,
    }
    found = {name: float(v) for name, v in values.items() if v is not None}
    reasons = [r.reasons for r in (busy, after) if r.reasons is not None]
    throttled = False
    if reasons:
        mask = 0
        for one in reasons:
            mask |= one
        found["throttle_reasons"] = float(mask)
        throttled = slowed_down(mask)
    for name, ns in (after.slowed_ns or {}).items():
        grown = max(0, ns - (before.slowed_ns or {}).get(name, ns))
        found[f"slowed_{name}_ms"] = grown / 1e6
        throttled = throttled or grown > _SLOWED_NS
    if reasons or after.slowed_ns:
        found["throttled"] = float(throttled)
    return found
