"""The example that takes label maps apart, seeing images in a small size."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "components.py"
SIDE = 96


def _components(task: str) -> Any:
    name = "components_example"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLE)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].Components(task, SIDE)


def panoptic() -> Any:
    return _components("panoptic")


def instances() -> Any:
    return _components("instance")
