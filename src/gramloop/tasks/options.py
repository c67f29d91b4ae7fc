"""Which model, and how images are given to it: options of commands, and keywords of calls from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gramloop.errors import GramLoopError, did_you_mean, then
from gramloop.util.options import option

if TYPE_CHECKING:
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor

MODEL_HELP = (
    "tiny (embedded; it knows drawn scenes only), hf:FOLDER (transformers; hf:NAME downloads it), model.onnx, model.xml, "
    "my_models.py:make or package.module:make"
)
DEVICE_HELP = "cpu, cuda, cuda:1, mps or auto: the GPU where there is one, else the CPU (auto)"
TASK_HELP = "semantic, detection, depth, panoptic or instance, where the model has several (semantic)"
_SIZES: Mapping[str, tuple[str, ...]] = {
    "short_side": (),
    **dict.fromkeys(("crop", "stride", "whole"), ("semantic",)),
    "side": ("panoptic", "instance"),
    "flip": ("depth",),
}  # with the tasks that alone have them


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how images are given to it."""

    model: str = option(MODEL_HELP, "tiny", metavar="SPEC")
    task: str | None = option(TASK_HELP, None, metavar="TASK")
    backbone: str | None = option("DINOv3 weights, or a transformers folder", None, metavar="FILE")
    head: str | None = option("the head's weights, in place of --model", None, metavar="FILE")
    dtype: Literal["float32", "bfloat16"] = option(
        "of the backbone's weights; bfloat16 halves their memory and rounds (float32)", "float32"
    )
    device: str | None = option(DEVICE_HELP, None, metavar="NAME")
    short_side: int | None = option(
        "size of the model's input: 896 to segment (512 to a PMT head), 2048 to detect, 768 to Meta's depth head",
        None,
        metavar="N",
    )
    crop: int | None = option("side of a segmentation window (896)", None, metavar="N")
    stride: int | None = option("distance between windows (596)", None, metavar="N")
    whole: bool = option("segment the whole image at once", False)
    side: int | None = option("of the square that panoptic and instance heads see (640)", None, metavar="N")
    flip: bool = option("depth: the mean with the mirror image, as for NYU", False)
    version: str = option(
        "what you call a model of your own code, where its content may change or its predictions vary",
        "",
        metavar="NAME",
        name="model-version",
    )
    trust_remote_code: bool = option(
        "let hf:FOLDER run Python code that it holds; read the code first", False
    )

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.model if self.head is None else Path(self.head).name

    def files(self) -> dict[str, str]:
        """The model as `gramloop.tasks.load_predictor` takes it."""
        if self.head is not None:
            if self.model != "tiny":
                raise GramLoopError(f"--model {self.model} is a whole model; leave it out, or --head")
            given = {"backbone": self.backbone, "head": self.head}
            return {name: str(Path(path).resolve()) for name, path in given.items() if path is not None}
        if self.backbone is not None:
            raise GramLoopError("--head FILE is missing: a backbone alone predicts nothing")
        from gramloop.tasks.loading import model_files

        return model_files(self.model, self.trust_remote_code)

    def chosen_task(self) -> str | None:
        """The task; None where the model has one alone."""
        if self.task is None:
            return "semantic" if "folder" in self.files() else None
        from gramloop.tasks.base import task_names

        if self.task not in task_names():
            known = task_names()
            meant = did_you_mean("semantic" if self.task == "segmentation" else self.task, known)
            wrong = f"there is no task {self.task!r}{meant}"
            raise GramLoopError(then(wrong, f"tasks are {', '.join(known)}"))
        return self.task

    def sizes(self) -> dict[str, object]:
        """How images are given to the model, where an option says so."""
        given = {name: getattr(self, name) for name in _SIZES}
        sizes = {name: value for name, value in given.items() if value is not None and value is not False}
        for name in sizes:
            owners = _SIZES[name]
            if owners and self.task is not None and self.task not in owners:
                raise GramLoopError(f"--{name} belongs to --task {' or '.join(owners)}")
        if "crop" in sizes or "stride" in sizes:
            sizes["mode"] = "slide"
        if sizes.pop("whole", False):
            sizes["mode"] = "whole"
        return sizes

    def load(self) -> Predictor[Prediction]:
        """The predictor."""
        from gramloop.tasks.loading import load_predictor
        from gramloop.util.device import choose_device

        device = choose_device(self.device)
        return load_predictor(self.chosen_task(), self.files(), self.sizes(), device, self.dtype)
