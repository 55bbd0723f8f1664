"""gpt_search: search strategies for TensorRT's Global Performance Tuner, and faster engines that stay faster.

Names are imported on first use: importing the package loads no backend library, nor Optuna, nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Blame": "search.blame",
    "Budget": "domain.budget",
    "Evaluation": "domain.evaluation",
    "ExpressionError": "domain.expression",
    "FailureCauses": "search.causes",
    "History": "domain.history",
    "InputError": "domain.errors",
    "Knob": "domain.knob",
    "KnobDatabase": "domain.knob",
    "Observation": "domain.outcome",
    "OptunaStrategy": "search.optuna_adapter",
    "Outcome": "domain.outcome",
    "Phase": "domain.outcome",
    "Proposal": "search.strategy",
    "Route": "domain.route",
    "SearchSpace": "domain.space",
    "SimulationResult": "search.simulate",
    "Strategy": "search.strategy",
    "StrategyError": "domain.errors",
    "Streams": "domain.streams",
    "Workload": "domain.workload",
    "as_sampler": "search.optuna_adapter",
    "load_strategy": "search.discovery",
    "parse_expression": "domain.expression",
    "planted": "search.landscapes",
    "recommend": "search.strategy",
    "simulate": "search.simulate",
    "uniform_untried": "search.untried",
    "untried_routes": "search.untried",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from gpt_search.domain.budget import Budget as Budget
    from gpt_search.domain.errors import InputError as InputError
    from gpt_search.domain.errors import StrategyError as StrategyError
    from gpt_search.domain.evaluation import Evaluation as Evaluation
    from gpt_search.domain.expression import ExpressionError as ExpressionError
    from gpt_search.domain.expression import parse_expression as parse_expression
    from gpt_search.domain.history import History as History
    from gpt_search.domain.knob import Knob as Knob
    from gpt_search.domain.knob import KnobDatabase as KnobDatabase
    from gpt_search.domain.outcome import Observation as Observation
    from gpt_search.domain.outcome import Outcome as Outcome
    from gpt_search.domain.outcome import Phase as Phase
    from gpt_search.domain.route import Route as Route
    from gpt_search.domain.space import SearchSpace as SearchSpace
    from gpt_search.domain.streams import Streams as Streams
    from gpt_search.domain.workload import Workload as Workload
    from gpt_search.search.blame import Blame as Blame
    from gpt_search.search.causes import FailureCauses as FailureCauses
    from gpt_search.search.discovery import load_strategy as load_strategy
    from gpt_search.search.landscapes import planted as planted
    from gpt_search.search.optuna_adapter import OptunaStrategy as OptunaStrategy
    from gpt_search.search.optuna_adapter import as_sampler as as_sampler
    from gpt_search.search.simulate import SimulationResult as SimulationResult
    from gpt_search.search.simulate import simulate as simulate
    from gpt_search.search.strategy import Proposal as Proposal
    from gpt_search.search.strategy import Strategy as Strategy
    from gpt_search.search.strategy import recommend as recommend
    from gpt_search.search.untried import uniform_untried as uniform_untried
    from gpt_search.search.untried import untried_routes as untried_routes


def __getattr__(name: str) -> Any:
    """Imports a public name from its module on first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gpt_search' has no attribute {name!r}")
    value = getattr(import_module(f"gpt_search.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
