"""Models as they are deployed: ``FILE.onnx`` or ``FILE.xml``, with how to prepare images and read outputs.

Four kinds of files say that themselves: those of `gramloop.export`; transformers' exports in a folder with config.json and
preprocessor_config.json; Ultralytics' detectors; and detectors with the input ``orig_target_sizes`` and the outputs labels,
boxes and scores (RT-DETR, D-FINE, DEIM). For any other, and to change a setting of these, ``FILE.json`` next to it holds
a `GraphRecipe`, or ``FILE.py`` two functions: ``prepare(pixels)`` returns the inputs by name and ``read(outputs, size)``
a prediction, with ``task`` and ``classes``. With ``preprocess(pixels)`` alone, as `gramloop.export` writes filters,
``FILE.py`` changes images and the rest is as without it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import COCO, Classes
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.graph_runtime import METADATA, Arrays, Graph, GraphInput, is_dinov3_graph
from gramloop.tasks.images import RGB, WEB, Normalisation, resize
from gramloop.tasks.module_predictor import Size
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation
from gramloop.tasks.user_models import (
    FunctionPredictor,
    find_make,
    import_code,
    read_classes,
    read_prediction,
)
from gramloop.util.json_files import checked, parse_json, read_json, refuse_unknown

Reading = Literal["logits", "labels", "depth", "disparity", "boxes", "yolo"]
_TASKS: Mapping[str, Task] = {
    "logits": "semantic",
    "labels": "semantic",
    "depth": "depth",
    "disparity": "depth",
    "boxes": "detection",
    "yolo": "detection",
}
_SIZES = "orig_target_sizes"
_KEEP, _LEAST_SCORE, _CANDIDATES, _OVERLAP = 300, 0.001, 30_000, 0.7  # as Ultralytics validates
_WHAT = "a recipe for a graph"


@dataclass(frozen=True)
class GraphRecipe:
    """How images are prepared for a graph, and its outputs read.

    read: what the outputs are: ``logits`` (1, classes, h, w) or ``labels`` (1, h, w) of pixels; ``depth`` or ``disparity``
        (1, h, w); ``boxes`` with scores and labels; ``yolo``, (1, 4 + classes, n) or (1, n, 6).
    outputs: the names of outputs, where they are not boxes, scores and labels, or there are several.
    classes: names in order or by number; "coco" for COCO's 80.
    size: height and width of the input, where the graph leaves them open.
    fit: ``stretch`` to the size; or the whole image in the middle (``letterbox``) or in the upper left ``corner`` of it.
    fill: the value, 0 to 255, around an image that does not cover the input.
    resample: PIL's bilinear, or OpenCV's without antialiasing (``linear``).
    mean, std: of the channels, on a scale of 0 to 1.
    channels: the order in which the graph takes them.
    box_form, box_unit: corners or centre and size; in pixels of the ``image`` or of the ``input``, or as a ``fraction``.
    align_corners: how logits are enlarged.
    """

    read: Reading
    outputs: Mapping[str, str] = field(default_factory=dict)
    classes: Literal["coco"] | list[str] | dict[int, str | None] | None = None
    size: tuple[int, int] | None = None
    fit: Literal["stretch", "letterbox", "corner"] = "stretch"
    fill: float = 0.0
    resample: Literal["bilinear", "linear"] = "bilinear"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    channels: Literal["RGB", "BGR"] = "RGB"
    box_form: Literal["corners", "centre"] = "corners"
    box_unit: Literal["image", "input", "fraction"] = "image"
    align_corners: bool = False

    def __post_init__(self) -> None:
        Normalisation(self.mean, self.std)
        if self.size is not None and min(self.size) < 1:
            raise GramLoopError(f"size is height and width of the input in pixels, not {list(self.size)}")

    def numbered_classes(self, name: str) -> Classes:
        """Classes by number."""
        if self.classes == "coco":
            return dict(enumerate(COCO.values()))
        return read_classes(self.classes, name)


def load_graph(
    files: Mapping[str, Any], task: Task | None = None, device: torch.device | str = "cpu"
) -> FunctionPredictor:
    """A predictor that runs a graph; nothing inside it can be replayed.

    Args:
        files: ``graph``, and ``recipe`` where there is one, as `gramloop.tasks.graph_runtime.graph_files` finds them.
        task: refuse a model for another.
        device: where it runs.
    """
    graph = Graph(Path(files["graph"]), device)
    given = Path(files["recipe"]) if "recipe" in files else None
    code = import_code(str(given)) if given is not None and given.suffix == ".py" else None
    filters = code is not None and hasattr(code, "preprocess") and not hasattr(code, "prepare")
    if given is not None and code is not None and not filters:
        found = _with_functions(graph, given)
    elif (given is None or filters) and (graph.path.parent / "preprocessor_config.json").is_file():
        found = _of_transformers(graph, task)
    else:
        found = _with_recipe(graph, None if filters else given)
    if filters:
        inside, preprocess = found.function, find_make(f"{given}:preprocess")
        found.function = lambda pixels: inside(cast(RGB, preprocess(pixels)))
    if task is not None and found.task != task:
        raise GramLoopError(f"{graph.path} is a model for {found.task}, not for {task}")
    return found


def _with_recipe(graph: Graph, given: Path | None) -> FunctionPredictor:
    recipe = _recipe(graph, given)
    classes = recipe.numbered_classes(graph.path.name)
    model = _RecipeModel(graph, recipe, classes)
    return FunctionPredictor(model, _TASKS[recipe.read], classes or None, graph.path.name)


def _with_functions(graph: Graph, path: Path) -> FunctionPredictor:
    prepare, read = (find_make(f"{path}:{part}") for part in ("prepare", "read"))
    held = import_code(str(path))

    def function(pixels: RGB) -> object:
        fed = prepare(pixels)
        feeds = fed if isinstance(fed, Mapping) else {graph.inputs[0].name: fed}
        return read(graph.run(cast(Arrays, feeds)), pixels.shape[:2])

    return FunctionPredictor(
        function, getattr(held, "task", None), getattr(held, "classes", None), graph.path.name
    )


def _of_transformers(graph: Graph, task: Task | None) -> FunctionPredictor:
    """A graph in the folder of a transformers model, whose processor prepares images and reads outputs."""
    from gramloop.tasks.transformers_models import (
        architecture,
        chosen_task,
        load_processor,
        output_reader,
        read_config,
        thing_numbers,
    )

    folder, names = graph.path.parent, [each.name for each in graph.inputs]
    config, kind = read_config(folder), architecture(folder)
    task = chosen_task(kind, folder, task)
    labels = {} if task == "depth" else config.get("id2label", {})
    classes: Classes = {int(number): str(label) for number, label in labels.items()}
    processor = load_processor(folder, kind)
    read = output_reader(kind, task, processor, SimpleNamespace(**config), classes)

    def function(pixels: RGB) -> Prediction:
        given = processor(images=pixels, return_tensors="np")
        found = graph.run({name: given[name] for name in names if name in given})
        tensors = {name: torch.from_numpy(value) for name, value in found.items()}
        return read(SimpleNamespace(**tensors), (pixels.shape[0], pixels.shape[1]))

    made = FunctionPredictor(function, task, classes or None, graph.path.name)
    made.things = thing_numbers(classes) if task == "panoptic" else frozenset()
    return made


# how a file is recognised


def _recipe(graph: Graph, path: Path | None) -> GraphRecipe:
    """What a file says of itself, with the settings of the recipe next to it."""
    known = _of_export(graph) or _of_ultralytics(graph) or _of_detr(graph)
    if path is None:
        if known is None:
            raise GramLoopError(
                f"{graph.path} does not say how to prepare images and read {', '.join(graph.outputs)}; write "
                f"{graph.path.with_suffix('.json').name} next to it, such as "
                '{"read": "logits", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "classes": ["road", …]}'
            )
    else:
        given = read_json(path, _WHAT)
        refuse_unknown(given, GraphRecipe.__dataclass_fields__, str(path), _WHAT)
        fields = {} if known is None else {**vars(known), "outputs": dict(known.outputs)}
        known = checked({**fields, **given}, GraphRecipe, str(path), _WHAT)
    if known.read in ("boxes", "yolo") and known.classes is None:
        if "coco" not in graph.path.stem.lower():
            named = graph.path.with_suffix(".json").name
            raise GramLoopError(
                f'{graph.path} does not name its classes; write {{"classes": [names in order]}}, or '
                f'{{"classes": "coco"}}, to {named} next to it'
            )
        known = replace(known, classes="coco")
    return known


def _of_export(graph: Graph) -> GraphRecipe | None:
    """The recipe inside a file of `gramloop.export`."""
    if METADATA not in graph.metadata:
        return None
    about = parse_json(graph.metadata[METADATA].encode(), str(graph.path), "metadata of gramloop export")
    if not isinstance(about, dict) or not about.get("recipe"):
        raise GramLoopError(f"{graph.path} is an export that predicts nothing which can be evaluated")
    recipe = {**about["recipe"], "classes": about.get("classes") or None}
    return checked(recipe, GraphRecipe, str(graph.path), _WHAT)


def _of_ultralytics(graph: Graph) -> GraphRecipe | None:
    if "names" not in graph.metadata or "task" not in graph.metadata:
        return None
    task = graph.metadata["task"].strip("'\"")
    if task != "detect":
        raise GramLoopError(f"{graph.path} is an Ultralytics model for {task}; those for detect can be read")
    try:
        names = ast.literal_eval(graph.metadata["names"])
        size = ast.literal_eval(graph.metadata.get("imgsz", "None"))
    except (ValueError, SyntaxError) as error:
        raise GramLoopError(f"the names in the metadata of {graph.path} cannot be read: {error}") from error
    return GraphRecipe(
        "yolo",
        classes={int(number): str(name) for number, name in dict(names).items()},
        size=None if size is None else (int(size[0]), int(size[1])),
        fit="letterbox",
        fill=114,
        resample="linear",
        box_form="centre",
        box_unit="input",
    )


def _of_detr(graph: Graph) -> GraphRecipe | None:
    inputs = {each.name for each in graph.inputs}
    if _SIZES not in inputs or not {"labels", "boxes", "scores"} <= set(graph.outputs):
        return None
    # of these detectors, those on DINOv3 alone were trained with normalised images
    if is_dinov3_graph(graph.path):
        return GraphRecipe("boxes", mean=WEB.mean, std=WEB.std)
    return GraphRecipe("boxes")


# running a recipe


@dataclass(frozen=True)
class _Place:
    """Where an image lies in the input: the input's size, and the first row and column, height and width inside."""

    input: Size
    top: int
    left: int
    high: int
    wide: int


class _RecipeModel:
    """A graph as a function from pixels to a prediction."""

    def __init__(self, graph: Graph, recipe: GraphRecipe, classes: Classes) -> None:
        self.graph, self.recipe, self.classes = graph, recipe, classes
        images = [each for each in graph.inputs if len(each.shape) == 4]
        others = [each.name for each in graph.inputs if each not in images and each.name != _SIZES]
        if len(images) != 1 or others:
            named = ", ".join(others or (each.name for each in graph.inputs))
            raise GramLoopError(
                f"{graph.path} takes {named}; a recipe prepares one image, and {graph.path.stem}.py with prepare and "
                "read anything else"
            )
        self.input = images[0]
        if self.input.shape[0] not in (1, None):
            raise GramLoopError(f"{graph.path} takes {self.input.shape[0]} images at once; export it for one")
        self.channels_last = self.input.shape[3] == 3 and self.input.shape[1] != 3
        self.size = self._size(self.input)

    def _size(self, entry: GraphInput) -> Size:
        sides = entry.shape[1:3] if self.channels_last else entry.shape[2:4]
        given = self.recipe.size or (None, None)
        high, wide = (fixed or asked for fixed, asked in zip(sides, given, strict=True))
        if high is None or wide is None:
            raise GramLoopError(
                f"{self.graph.path} takes images of any size; a recipe next to it says which: "
                '{"size": [height, width]}'
            )
        if self.recipe.size not in (None, (high, wide)):
            raise GramLoopError(f"{self.graph.path} takes {wide} x {high} pixels, not the recipe's {given}")
        return high, wide

    def __call__(self, pixels: RGB) -> Prediction:
        size = (pixels.shape[0], pixels.shape[1])
        image, place = self._prepare(pixels)
        feeds: dict[str, NDArray[Any]] = {self.input.name: image}
        if any(each.name == _SIZES for each in self.graph.inputs):
            feeds[_SIZES] = np.array([[size[1], size[0]]])
        found = self.graph.run(feeds)
        read: Callable[[Arrays, Size, _Place], Prediction] = {
            "logits": self._labels,
            "labels": self._labels,
            "depth": self._depth,
            "disparity": self._depth,
            "boxes": self._boxes,
            "yolo": self._yolo,
        }[self.recipe.read]
        return read(found, size, place)

    def _prepare(self, pixels: RGB) -> tuple[NDArray[Any], _Place]:
        recipe, (high, wide) = self.recipe, self.size
        place = self._place(pixels.shape[0], pixels.shape[1])
        shown = self._resized(pixels, (place.high, place.wide)).astype(np.float32)
        canvas = np.full((high, wide, 3), recipe.fill, np.float32)
        canvas[place.top : place.top + place.high, place.left : place.left + place.wide] = shown
        if self.input.dtype != "uint8":
            mean, std = (255 * np.array(each, np.float32) for each in (recipe.mean, recipe.std))
            canvas = (canvas - mean) / std
        if recipe.channels == "BGR":
            canvas = canvas[:, :, ::-1]
        image: NDArray[Any] = canvas[None] if self.channels_last else canvas.transpose(2, 0, 1)[None]
        return image, place

    def _place(self, height: int, width: int) -> _Place:
        high, wide = self.size
        if self.recipe.fit == "stretch":
            return _Place(self.size, 0, 0, high, wide)
        factor = min(high / height, wide / width)
        inside = max(1, round(height * factor)), max(1, round(width * factor))
        if self.recipe.fit == "corner":
            return _Place(self.size, 0, 0, *inside)
        top, left = (
            round((side - part) / 2 - 0.1) for side, part in zip(self.size, inside, strict=True)
        )  # an odd row goes below
        return _Place(self.size, top, left, *inside)

    def _resized(self, pixels: RGB, size: Size) -> RGB:
        if self.recipe.resample == "bilinear" or pixels.shape[:2] == size:
            return resize(pixels, size)
        import cv2

        return cast(RGB, cv2.resize(pixels, (size[1], size[0]), interpolation=cv2.INTER_LINEAR))

    def _output(self, found: Arrays, role: str, dims: int) -> NDArray[Any]:
        """An output by its role, without the leading dimensions of one image."""
        name = self.recipe.outputs.get(role, role)
        if name not in found:
            if len(found) != 1 or role in self.recipe.outputs:
                raise GramLoopError(
                    f"{self.graph.path.name} returns {', '.join(found)}; a recipe names the one with {role}: "
                    f'{{"outputs": {{"{role}": NAME}}}}'
                )
            name = next(iter(found))
        values = np.asarray(found[name])
        while values.ndim > dims and values.shape[0] == 1:
            values = values[0]
        if values.ndim != dims:
            raise GramLoopError(
                f"{name} of {self.graph.path.name} has the shape {tuple(found[name].shape)}, which is not "
                f"what a recipe reads as {role}"
            )
        return values

    def _map(self, values: Tensor, size: Size, place: _Place, mode: str) -> Tensor:  # (1, C, h, w)
        """A map over the input, cut to the image and brought to its size."""
        corners = {"align_corners": self.recipe.align_corners} if mode == "bilinear" else {}
        if (place.high, place.wide) != place.input:
            if values.shape[2:] != place.input:
                values = F.interpolate(values, place.input, mode=mode, **corners)
            rows, columns = place.top + place.high, place.left + place.wide
            values = values[:, :, place.top : rows, place.left : columns]
        return values if values.shape[2:] == size else F.interpolate(values, size, mode=mode, **corners)

    def _labels(self, found: Arrays, size: Size, place: _Place) -> Segmentation:
        if self.recipe.read == "logits":
            logits = torch.from_numpy(self._output(found, "logits", 3).astype(np.float32))[None]
            values = self._map(logits, size, place, "bilinear")[0].argmax(0)
        else:
            labels = torch.from_numpy(self._output(found, "labels", 2).astype(np.float32))[None, None]
            values = self._map(labels, size, place, "nearest")[0, 0]
        return Segmentation(values.int().numpy())

    def _depth(self, found: Arrays, size: Size, place: _Place) -> Depth:
        depth = torch.from_numpy(self._output(found, "depth", 2).astype(np.float32))[None, None]
        values = self._map(depth, size, place, "bilinear")[0, 0].numpy()
        return Depth(values, disparity=self.recipe.read == "disparity")

    def _boxes(self, found: Arrays, size: Size, place: _Place) -> Detection:
        boxes = self._output(found, "boxes", 2).astype(np.float64)
        scores, labels = (self._output(found, each, 1) for each in ("scores", "labels"))
        there = scores > 0
        return self._detection(boxes[there], scores[there], labels[there], size, place)

    def _yolo(self, found: Arrays, size: Size, place: _Place) -> Detection:
        values = self._output(found, "boxes", 2).astype(np.float64)
        if values.shape[1] == 6 and values.shape[0] != 4 + len(self.classes):  # suppressed in the graph
            values = values[values[:, 4] > 0]
            return self._detection(values[:, :4], values[:, 4], values[:, 5], size, place, "corners")
        if values.shape[0] != 4 + len(self.classes):
            raise GramLoopError(
                f"{self.graph.path.name} returns {values.shape[0] - 4} classes for each box, and "
                f"{len(self.classes)} are named"
            )
        labels, places = np.nonzero(values[4:] > _LEAST_SCORE)
        scores = values[4:][labels, places]
        best = np.argsort(-scores, kind="stable")[:_CANDIDATES]
        labels, scores, boxes = labels[best], scores[best], values[:4, places[best]].T
        kept = _suppressed(boxes, scores, labels)
        return self._detection(boxes[kept], scores[kept], labels[kept], size, place)

    def _detection(
        self,
        boxes: NDArray[np.float64],
        scores: NDArray[Any],
        labels: NDArray[Any],
        size: Size,
        place: _Place,
        form: str | None = None,
    ) -> Detection:
        recipe, (height, width) = self.recipe, size
        if (form or recipe.box_form) == "centre":
            half = boxes[:, 2:] / 2
            boxes = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
        if recipe.box_unit != "image":
            high, wide = place.input
            if recipe.box_unit == "fraction":
                boxes = boxes * [wide, high, wide, high]
            boxes = boxes - [place.left, place.top, place.left, place.top]
            boxes = boxes * np.tile([width / place.wide, height / place.high], 2)
        boxes = np.clip(boxes, 0, [width, height, width, height])
        numbers = labels.astype(np.int64)
        if strange := sorted(set(numbers.tolist()) - set(self.classes)):
            raise GramLoopError(
                f"{self.graph.path.name} returned the class {strange[0]}, and {len(self.classes)} classes are named: "
                f"{min(self.classes)} to {max(self.classes)}"
            )
        found = read_prediction((boxes, scores, numbers), size, self.graph.path.name)
        assert isinstance(found, Detection)
        return found


def _suppressed(boxes: NDArray[np.float64], scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """The boxes (centre, size) that no better one of their class overlaps, best first."""
    import cv2

    corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, 2:]], 1)
    kept = cv2.dnn.NMSBoxesBatched(corners.tolist(), scores.tolist(), labels.tolist(), _LEAST_SCORE, _OVERLAP)
    return np.sort(np.asarray(kept, np.int64).reshape(-1))[:_KEEP]
