"""An attached model compiles into one graph and exports to a file that needs no gramloop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gramloop
from library_models import build

WINDOW = (2, 3)


class Features(nn.Module):
    """The part of a host that people deploy: image in, tensor out."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(x).last_hidden_state


@pytest.fixture
def features() -> Features:
    return Features(build("DINOv3ViTModel")[0]).eval()


@pytest.fixture
def x() -> Tensor:
    return build("DINOv3ViTModel")[1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"update_at": "final"},
        {"gate": "uniform", "strength": 0.3},
    ],
    ids=["the method", "update at the final layer", "a constant gate"],
)
def test_compiles_into_one_graph(features: Features, x: Tensor, settings: dict) -> None:
    graphs = []

    def counting_backend(graph: torch.fx.GraphModule, inputs: list[Tensor]):
        graphs.append(graph)
        return graph.forward

    with torch.no_grad(), gramloop.attached(features, window=WINDOW, **settings):
        expected = features(x)
        torch._dynamo.reset()
        compiled = torch.compile(features, fullgraph=True, backend=counting_backend)  # a break would raise
        assert torch.equal(compiled(x), expected)
    assert len(graphs) == 1


@pytest.mark.slow
def test_compiles_with_the_default_backend(features: Features, x: Tensor) -> None:
    with torch.no_grad(), gramloop.attached(features, window=WINDOW):
        expected = features(x)
        compiled = torch.compile(features, fullgraph=True)
        # the compiler may reorder float32 sums; features have scale 4
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=1e-5)


LOAD = """
import sys, torch
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gramloop", "transformers"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
program = torch.export.load(sys.argv[1])
x, expected = torch.load(sys.argv[2])
with torch.no_grad():
    difference = (program.module()(x) - expected).abs().max().item()
assert not any(name.split(".")[0] in ("gramloop", "transformers") for name in sys.modules)
print(difference)
"""


def test_exports_to_a_file_that_needs_no_gramloop(features: Features, x: Tensor, tmp_path: Path) -> None:
    with torch.no_grad(), gramloop.attached(features, window=WINDOW):
        expected = features(x)
        program = torch.export.export(features, (x,))
    torch.export.save(program, tmp_path / "replayed.pt2")
    torch.save((x, expected), tmp_path / "expected.pt")
    arguments = [sys.executable, "-c", LOAD, str(tmp_path / "replayed.pt2"), str(tmp_path / "expected.pt")]
    run = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) <= 1e-5
