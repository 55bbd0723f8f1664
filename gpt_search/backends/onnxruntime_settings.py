"""From a route to what ONNX Runtime is told, and to the part of it that the fingerprint must name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpt_search.backends.base import BuildError
from gpt_search.backends.onnxruntime_catalogue import SETTINGS, Role, Setting, Target, optimizer_of
from gpt_search.domain.errors import InputError
from gpt_search.domain.knob import KnobDatabase
from gpt_search.domain.route import Route

_BY_NAME: dict[str, Setting] = {s.name: s for s in SETTINGS}
_INTER = ("session:inter_threads", "session:inter_spinning", "session:inter_spin_us", "session:inter_spin_backoff")
_INTRA = ("session:intra_spinning", "session:intra_spin_us", "session:intra_spin_backoff", "session:dynamic_block_base")


@dataclass(frozen=True)
class Settings:
    """Everything that a route asks for.

    values: setting name -> knob value, every setting of the catalogue. disabled: optimisers that are
    switched off, sorted.
    """

    values: Mapping[str, str]
    disabled: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, route: Route, database: KnobDatabase) -> Settings:
        """The settings of a route. Raises BuildError for a knob or a value that the database does not hold."""
        values = {s.name: s.default for s in SETTINGS}
        disabled = []
        for name, value in route.items_in_order:
            try:
                why = database[name].check(value)
            except InputError as error:
                raise BuildError(str(error)) from None
            if why is not None:
                raise BuildError(f"knob {name!r}: {why}")
            optimizer = optimizer_of(name)
            if optimizer is None:
                values[name] = value
            elif value == "off":
                disabled.append(optimizer)
        return cls(values, tuple(sorted(disabled)))

    def to_json(self) -> dict[str, Any]:
        """A JSON form that `from_json` reads back."""
        return {"values": dict(self.values), "disabled": list(self.disabled)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """The settings that `to_json` described. Raises KeyError or TypeError for another form."""
        values = {str(k): str(v) for k, v in data["values"].items()}
        for name, value in values.items():
            _BY_NAME[name].sends[value]
        return cls(values, tuple(str(d) for d in data["disabled"]))

    def reloading(self) -> Settings:
        """The settings with which the optimised model is loaded: the graph is final, the rest stays."""
        kept = {
            name: value if _BY_NAME[name].role is not Role.GRAPH else _BY_NAME[name].default
            for name, value in self.values.items()
        }
        return Settings(kept | {"session:graph_level": "disable"})

    @property
    def denormals_are_zero(self) -> bool:
        """Whether denormal floats count as zero."""
        return self.values["session:denormal_as_zero"] == "on"

    @property
    def quantize(self) -> str:
        """Value of model:quantize_dynamic."""
        return self.values["model:quantize_dynamic"]

    @property
    def fixed_dimensions(self) -> bool:
        """Whether symbolic dimensions are fixed at the workload's shapes."""
        return self.values["input:free_dims"] == "fixed"

    @property
    def shrinks_arena(self) -> bool:
        """Whether calls give arena memory back; the runtime refuses that without an arena."""
        return self.values["run:arena_shrinkage"] == "on" and self.values["session:cpu_arena"] == "on"

    def session_options(self) -> Any:
        """An `onnxruntime.SessionOptions` with every setting that differs from the default."""
        import onnxruntime

        enums: dict[str, Any] = {
            "graph_optimization_level": onnxruntime.GraphOptimizationLevel,
            "execution_mode": onnxruntime.ExecutionMode,
            "execution_order": onnxruntime.ExecutionOrder,
        }
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors come as exceptions; the log is for validation
        for name, value in self.values.items():
            setting = _BY_NAME[name]
            sent = setting.sends[value]
            if setting.target is Target.CONFIG and sent is not None:
                options.add_session_config_entry(setting.key, str(sent))
            elif setting.target is Target.OPTION:
                kind = enums.get(setting.key)
                setattr(options, setting.key, sent if kind is None else getattr(kind, str(sent)))
        return options

    def run_options(self) -> Any | None:
        """An `onnxruntime.RunOptions`, or None where calls need none."""
        if not self.shrinks_arena:
            return None
        import onnxruntime

        setting = _BY_NAME["run:arena_shrinkage"]
        options = onnxruntime.RunOptions()
        options.add_run_config_entry(setting.key, str(setting.sends["on"]))
        return options

    def runtime_part(self, physical_cores: int) -> dict[str, str]:
        """What changes speed or bits without changing the graph, with inert settings left out.

        Two routes with equal parts and equal graphs are the same engine. physical_cores: what 0
        threads stands for.
        """
        part = {n: v for n, v in self.values.items() if _BY_NAME[n].role is Role.RUNTIME}
        parallel = part["session:execution_mode"] == "parallel"
        if parallel:
            part.pop("session:execution_order")
            part["session:inter_threads"] = _resolved(part["session:inter_threads"], physical_cores)
        else:
            for name in _INTER:  # the inter-op pool exists in parallel mode only
                part.pop(name)
        threads = part["session:intra_threads"]
        # With 0 the runtime also pins the threads, though not in parallel mode: then it equals the number.
        if not parallel and threads == "0" and physical_cores > 1:
            part["session:intra_threads"] = f"{physical_cores} pinned"
        else:
            part["session:intra_threads"] = _resolved(threads, physical_cores)
        if part["session:intra_threads"] == "1":
            for name in _INTRA:  # no pool
                part.pop(name)
        for kind in ("intra", "inter"):
            if part.get(f"session:{kind}_spinning") == "off":
                part.pop(f"session:{kind}_spin_us")
                part.pop(f"session:{kind}_spin_backoff")
        if "on" not in (part.get("session:intra_spinning"), part.get("session:inter_spinning")):
            part.pop("session:force_spinning_stop")
        if part["session:cpu_arena"] == "off":
            part.pop("run:arena_shrinkage")
        return part


def _resolved(threads: str, cores: int) -> str:
    return threads if threads != "0" else str(cores)
