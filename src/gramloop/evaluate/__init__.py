"""Evaluation: what is to be run, running it on any number of workers, and keeping what came out."""

from typing import TYPE_CHECKING

from gramloop.lazy import calls, lazy_names

if TYPE_CHECKING:
    from gramloop.evaluate.answer import Answer, MethodGain
    from gramloop.evaluate.cost import MethodCost, measure_cost
    from gramloop.evaluate.evaluation import evaluate, evaluate_model
    from gramloop.evaluate.methods import Method, parse_method
    from gramloop.evaluate.options import EvaluateOptions
    from gramloop.evaluate.plan import DataSource, Part, Plan, Unit, Workload, read_plan, trajectories_of
    from gramloop.evaluate.planning import Request, make_plan
    from gramloop.evaluate.results import Results, collect
    from gramloop.evaluate.rows import MethodRows, maps_of
    from gramloop.evaluate.store import Store, read_condition
else:
    __getattr__, __dir__ = lazy_names(__name__)
    calls(__name__, "evaluate_model")  # gramloop.evaluate(model, data, suite=…, out=…)

__all__ = [
    "Answer", "DataSource", "EvaluateOptions", "Method", "MethodCost", "MethodGain", "MethodRows", "Part", "Plan",
    "Request", "Results", "Store", "Unit", "Workload", "collect", "evaluate", "evaluate_model", "make_plan", "maps_of",
    "measure_cost", "parse_method", "read_condition", "read_plan", "trajectories_of",
]  # fmt: skip
