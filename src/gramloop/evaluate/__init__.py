"""Evaluation: what is to be run, running it on any number of workers, and keeping what came out."""

from typing import TYPE_CHECKING

from gramloop.lazy import calls, lazy_names

if TYPE_CHECKING:
    from gramloop.evaluate.evaluation import EvaluationOutcome, evaluate
    from gramloop.evaluate.from_python import evaluate_model
    from gramloop.evaluate.methods import Method, parse_method
    from gramloop.evaluate.plan import DataSource, Plan, read_plan
    from gramloop.evaluate.planning import Request, make_plan
    from gramloop.evaluate.results import Results, collect
    from gramloop.evaluate.rows import counts_of, first_rows, maps_of, picture_of
    from gramloop.evaluate.store import Store
    from gramloop.evaluate.trajectories import trajectories_of
else:
    __getattr__, __dir__ = lazy_names(__name__)
    calls(__name__, "evaluate_model")  # gramloop.evaluate(model, data, suite=…, out=…)

__all__ = [
    "DataSource", "EvaluationOutcome", "Method", "Plan", "Request", "Results", "Store", "collect",
    "counts_of", "evaluate", "evaluate_model", "first_rows", "make_plan", "maps_of", "parse_method", "picture_of",
    "read_plan", "trajectories_of",
]  # fmt: skip
