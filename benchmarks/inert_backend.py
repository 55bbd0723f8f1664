"""ONNX Runtime with knobs that do nothing, for A/A studies: every route is the same engine, and nobody is told."""

from __future__ import annotations

from gpt_search.backends.base import BuildOptions, Capabilities, Engine, Fingerprints, Placement
from gpt_search.backends.onnxruntime import OnnxRuntimeBackend
from gpt_search.domain.knob import Knob, KnobDatabase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload

KNOBS = 40


class InertBackend:
    """Forty on/off knobs, all inert. It gives no fingerprints: equal engines are timed as if they differed."""

    capabilities = Capabilities(Fingerprints.NONE, build_uses_device=True, placement=Placement.PAUSED_WORKER)

    def __init__(self) -> None:
        self._real = OnnxRuntimeBackend()

    def knob_database(self) -> KnobDatabase:
        """The inert knobs."""
        knobs = [Knob(f"inert{i}", ("on", "off"), "off", "does nothing") for i in range(KNOBS)]
        return KnobDatabase("inert-1", tuple(knobs))

    def environment(self) -> dict[str, str]:
        """That of ONNX Runtime."""
        return self._real.environment()

    def build(self, workload: Workload, route: Route, options: BuildOptions) -> Engine:
        """ONNX Runtime's own defaults, whatever the route says."""
        return _nameless(self._real.build(workload, Route(()), options))

    def load(self, data: bytes, workload: Workload) -> Engine:
        """What `build` made and `save` wrote."""
        return _nameless(self._real.load(data, workload))


def _nameless(engine: Engine) -> Engine:
    engine.fingerprint = None
    return engine
