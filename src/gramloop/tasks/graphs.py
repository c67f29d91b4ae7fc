"""Models as they are deployed: ``FILE.onnx``, run by onnxruntime, or ``FILE.xml``, run by OpenVINO.

Four kinds of files say themselves how images are prepared and outputs read: those of `gramloop.export`; transformers'
exports in a folder with config.json and preprocessor_config.json; Ultralytics' detectors; and detectors with the input
``orig_target_sizes`` and the outputs labels, boxes and scores (RT-DETR, D-FINE, DEIM). For any other, and to change a
setting of these, ``FILE.json`` next to it holds a `GraphRecipe`, or ``FILE.py`` two functions: ``prepare(pixels)`` returns
the inputs by name and ``read(outputs, size)`` a prediction, with ``task`` and ``classes``. With ``preprocess(pixels)``
alone, as `gramloop.export` writes filters, ``FILE.py`` changes images and the rest is as without it.
"""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, cast

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import COCO, Classes
from gramloop.tasks.custom import FunctionPredictor, find_make, import_code, read_classes, read_prediction
from gramloop.tasks.depth import Depth
from gramloop.tasks.images import RGB, WEB, Normalisation, resize
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Crop, Segmentation
from gramloop.util.json_files import checked, parse_json, read_json, refuse_unknown

Arrays = Mapping[str, NDArray[Any]]
RUNTIMES = {".onnx": "onnxruntime", ".xml": "openvino"}  # by the ending of the file
METADATA = "gramloop"  # the entry of a file's metadata that gramloop export writes
_TYPES = {"float": "float32", "double": "float64"}  # where onnxruntime's names differ from numpy's
_TASKS: Mapping[str, Task] = {
    **dict.fromkeys(("logits", "labels"), "semantic"),
    **dict.fromkeys(("depth", "disparity"), "depth"),
    **dict.fromkeys(("boxes", "yolo"), "detection"),
}
_SIZES = "orig_target_sizes"
_KEEP, _LEAST_SCORE, _CANDIDATES, _OVERLAP = 300, 0.001, 30_000, 0.7  # as Ultralytics validates
_WHAT = "a recipe for a graph"


# the runtimes


@dataclass(frozen=True)
class GraphInput:
    """One input: its name, its shape with None for a dimension that is not fixed, and its type."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


class Graph:
    """An opened graph, ``FILE.onnx`` or ``FILE.xml``: its inputs, the names of its outputs, its metadata, and ``run``.

    It runs on "cpu", or on "cuda" where onnxruntime has it. On "meta" it is opened on the CPU.
    """

    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    metadata: dict[str, str]

    def __init__(self, path: Path, device: torch.device | str = "cpu") -> None:
        self.path, self.runtime = path, RUNTIMES[path.suffix.lower()]
        if not path.is_file():
            raise GramLoopError(f"{path} does not exist; --model takes FILE.onnx or FILE.xml")
        self.device = "cpu" if str(device) == "meta" else torch.device(device).type
        self._open()

    def _open(self) -> None:
        self.threads = torch.get_num_threads()
        package = runtime_package(self.runtime, self.path)
        opener = self._open_onnx if self.runtime == "onnxruntime" else self._open_openvino
        try:
            self._run = opener(package)
        except GramLoopError:
            raise
        except Exception as error:  # the runtimes raise types of their own
            raise GramLoopError(f"{self.runtime} cannot open {self.path}: {first_line(error)}") from error

    def _open_onnx(self, package: Any) -> Callable[[Arrays], list[NDArray[Any]]]:
        wanted = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(self.device, "")
        if wanted not in package.get_available_providers():
            raise GramLoopError(
                f"onnxruntime cannot run {self.path.name} on {self.device} here; give --device cpu"
            )
        options = package.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        session = package.InferenceSession(str(self.path), options, providers=[wanted])
        self.inputs = tuple(
            GraphInput(each.name, tuple(_fixed(side) for side in each.shape), _numpy_type(each.type))
            for each in session.get_inputs()
        )
        self.outputs = tuple(each.name for each in session.get_outputs())
        self.metadata = dict(session.get_modelmeta().custom_metadata_map)
        return lambda feeds: list(session.run(list(self.outputs), dict(feeds)))

    def _open_openvino(self, package: Any) -> Callable[[Arrays], list[NDArray[Any]]]:
        if self.device != "cpu":
            raise GramLoopError(f"OpenVINO runs {self.path.name} on the CPU here; give --device cpu")
        core = package.Core()
        model = core.read_model(str(self.path))
        # f32 whatever the processor offers: the same file gives the same numbers on every machine
        settings = {"INFERENCE_NUM_THREADS": self.threads, "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(model, "CPU", settings).create_infer_request()
        self.inputs = tuple(
            GraphInput(
                each.get_any_name(),
                tuple(_fixed(side.get_length() if side.is_static else None) for side in each.partial_shape),
                np.dtype(each.element_type.to_dtype()).name,
            )
            for each in model.inputs
        )
        self.outputs = tuple(each.get_any_name() for each in model.outputs)
        self.metadata = _openvino_metadata(model, self.path)

        def run(feeds: Arrays) -> list[NDArray[Any]]:
            found = request.infer(dict(feeds))
            return [np.array(found[place]) for place in range(len(self.outputs))]

        return run

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """The outputs by name, computed with as many threads as torch has at this moment."""
        if self.threads != torch.get_num_threads():
            self._open()
        types = {each.name: each.dtype for each in self.inputs}
        given = {name: np.ascontiguousarray(value, types.get(name)) for name, value in feeds.items()}
        try:
            found = self._run(given)
        except Exception as error:
            shapes = ", ".join(f"{name} {value.shape}" for name, value in given.items())
            raise GramLoopError(f"{self.path.name} fails on {shapes}: {first_line(error)}") from error
        return dict(zip(self.outputs, found, strict=True))


def graph_files(path: Path) -> dict[str, Path]:
    """The file of a graph, those with its weights, and the recipe next to it."""
    weights = [each for each in (path.with_suffix(".bin"),) if each.is_file()]
    if path.suffix.lower() == ".onnx":
        weights = sorted(each for each in path.parent.glob("*data") if each.name.startswith(path.name))
    recipes = [each for ending in (".json", ".py") if (each := path.with_suffix(ending)).is_file()]
    if len(recipes) > 1:
        raise GramLoopError(f"{recipes[0]} and {recipes[1]} both say how to read {path.name}; keep one")
    numbered = {f"weights {number}" if number else "weights": each for number, each in enumerate(weights)}
    return {"graph": path, **numbered} | ({"recipe": recipes[0]} if recipes else {})


def is_dinov3_graph(path: str | Path) -> bool:
    """Whether the name of a graph's file says that its backbone is a DINOv3."""
    return "dinov3" in Path(path).stem.lower()


def runtime_versions(path: Path) -> dict[str, str]:
    """The version of the package that runs a graph, which its numbers depend on."""
    name = RUNTIMES[path.suffix.lower()]
    return {f"version of {name}": version(name)}


def runtime_package(name: str, path: Path) -> Any:
    """The package that runs a file."""
    # openvino's telemetry package would otherwise try to reach a server
    os.environ.setdefault("OPENVINO_TELEMETRY_DISABLE", "1")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        extra = "openvino" if name == "openvino" else "export"
        raise GramLoopError(
            f"{path.name} needs the package {name}; the extra gramloop[{extra}] installs it"
        ) from error


def _openvino_metadata(model: Any, path: Path) -> dict[str, str]:
    # of this project's exporter, and of Ultralytics'
    places = [place for key in (METADATA, "names", "task") for place in (["framework", key], [key])]
    known = [place for place in places if model.has_rt_info(place)]
    entries = {place[-1]: str(model.get_rt_info(place).astype(str)) for place in known}
    described = path.with_name("metadata.yaml")  # where Ultralytics describes an OpenVINO folder
    if not entries and described.is_file():
        import yaml  # type: ignore[import-untyped]

        given = yaml.safe_load(described.read_text(encoding="utf-8"))
        entries = {str(key): repr(value) for key, value in given.items()} if isinstance(given, dict) else {}
    return entries


def _fixed(side: object) -> int | None:
    return side if isinstance(side, int) and side > 0 else None


def _numpy_type(text: str) -> str:
    inside = text.removeprefix("tensor(").removesuffix(")")
    return _TYPES.get(inside, inside)


def first_line(error: Exception) -> str:
    """The first line that an error says, at most 300 characters."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]


# the model of a graph


@dataclass(frozen=True)
class GraphRecipe:
    """How images are prepared for a graph, and its outputs read.

    read: what the outputs are: ``logits`` (1, classes, h, w) or ``labels`` (1, h, w) of pixels; ``depth`` or ``disparity``
        (1, h, w); ``boxes`` with scores and labels; ``yolo``, (1, 4 + classes, n) or (1, n, 6).
    outputs: the names of outputs, where they are not boxes, scores and labels, or there are several.
    classes: names in order or by number; "coco" for COCO's 80.
    size: height and width of the input, where the graph leaves them open.
    fit: ``stretch`` to the size, or the whole image in the middle of it (``letterbox``).
    fill: the value, 0 to 255, around an image that does not cover the input.
    resample: PIL's bilinear, or OpenCV's without antialiasing (``linear``).
    mean, std: of the channels, on a scale of 0 to 1.
    box_unit: corners of boxes are in pixels of the ``image`` or of the ``input``.
    """

    read: Literal["logits", "labels", "depth", "disparity", "boxes", "yolo"]
    outputs: Mapping[str, str] = field(default_factory=dict)
    classes: Literal["coco"] | list[str] | dict[int, str | None] | None = None
    size: tuple[int, int] | None = None
    fit: Literal["stretch", "letterbox"] = "stretch"
    fill: float = 0.0
    resample: Literal["bilinear", "linear"] = "bilinear"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    box_unit: Literal["image", "input"] = "image"

    def __post_init__(self) -> None:
        Normalisation(self.mean, self.std)
        if self.size is not None and min(self.size) < 1:
            raise GramLoopError(f"size is height and width of the input in pixels, not {list(self.size)}")


def load_graph(
    files: Mapping[str, Any], task: Task | None = None, device: torch.device | str = "cpu"
) -> FunctionPredictor:
    """A predictor that runs a graph of `graph_files`; a ``task`` refuses a model for another."""
    graph = Graph(Path(files["graph"]), device)
    given = Path(files["recipe"]) if "recipe" in files else None
    code = None
    if given is not None and given.suffix == ".py":
        code, given = import_code(str(given)), None
    filters = hasattr(code, "preprocess") and not hasattr(code, "prepare")
    if code is not None and not filters:
        found = _with_functions(graph, code, files["recipe"])
    elif given is None and (graph.path.parent / "preprocessor_config.json").is_file():
        found = _of_transformers(graph, task)
    else:
        recipe = _recipe(graph, given)
        named = list(COCO.values()) if recipe.classes == "coco" else recipe.classes
        classes = read_classes(named, graph.path.name)
        model = _RecipeModel(graph, recipe, classes)
        found = FunctionPredictor(model, _TASKS[recipe.read], classes or None, graph.path.name)
    if filters:
        inside, preprocess = found.function, find_make(f"{files['recipe']}:preprocess")
        found.function = lambda pixels: inside(cast(RGB, preprocess(pixels)))
    if task is not None and found.task != task:
        raise GramLoopError(f"{graph.path} is a model for {found.task}, not for {task}")
    return found


def _with_functions(graph: Graph, code: ModuleType, path: str) -> FunctionPredictor:
    prepare, read = (find_make(f"{path}:{part}") for part in ("prepare", "read"))

    def function(pixels: RGB) -> object:
        fed = prepare(pixels)
        feeds = fed if isinstance(fed, Mapping) else {graph.inputs[0].name: fed}
        return read(graph.run(cast(Arrays, feeds)), pixels.shape[:2])

    task, classes = getattr(code, "task", None), getattr(code, "classes", None)
    return FunctionPredictor(function, task, classes, graph.path.name)


def _of_transformers(graph: Graph, task: Task | None) -> FunctionPredictor:
    """A graph in the folder of a transformers model, whose processor prepares images and reads outputs."""
    from gramloop.tasks import transformers_models as models

    folder, names = graph.path.parent, [each.name for each in graph.inputs]
    config, kind = models.read_config(folder), models.architecture(folder)
    task = models.chosen_task(kind, folder, task)
    classes = models.named_classes(task, config.get("id2label", {}))
    processor = models.load_processor(folder)
    read = models.output_reader(kind, task, processor, SimpleNamespace(**config), classes)

    def function(pixels: RGB) -> Prediction:
        given = processor(images=pixels, return_tensors="np")
        found = graph.run({name: given[name] for name in names if name in given})
        tensors = {name: torch.from_numpy(value) for name, value in found.items()}
        return read(SimpleNamespace(**tensors), (pixels.shape[0], pixels.shape[1]))

    made = FunctionPredictor(function, task, classes or None, graph.path.name)
    made.things = models.thing_numbers(classes) if task == "panoptic" else frozenset()
    return made


# how a file is recognised


def _recipe(graph: Graph, path: Path | None) -> GraphRecipe:
    """What a file says of itself, with the settings of the recipe next to it."""
    known = _of_export(graph) or _of_ultralytics(graph) or _of_detr(graph)
    named = graph.path.with_suffix(".json").name
    if path is not None:
        given = read_json(path, _WHAT)
        refuse_unknown(given, GraphRecipe.__dataclass_fields__, str(path), _WHAT)
        fields = {} if known is None else {**vars(known), "outputs": dict(known.outputs)}
        known = checked({**fields, **given}, GraphRecipe, str(path), _WHAT)
    elif known is None:
        raise GramLoopError(
            f"{graph.path} does not say how to prepare images and read {', '.join(graph.outputs)}; write {named} next to "
            'it, such as {"read": "logits", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "classes": ["road", …]}'
        )
    if known.read in ("boxes", "yolo") and known.classes is None:
        if "coco" not in graph.path.stem.lower():
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
    classes: Any = {int(number): str(name) for number, name in dict(names).items()}
    sides = None if size is None else (int(size[0]), int(size[1]))
    how: Any = {"fit": "letterbox", "fill": 114, "resample": "linear", "box_unit": "input"}
    return GraphRecipe("yolo", classes=classes, size=sides, **how)


def _of_detr(graph: Graph) -> GraphRecipe | None:
    inputs = {each.name for each in graph.inputs}
    if _SIZES not in inputs or not {"labels", "boxes", "scores"} <= set(graph.outputs):
        return None
    # of these detectors, those on DINOv3 alone were trained with normalised images
    return GraphRecipe("boxes", **(vars(WEB) if is_dinov3_graph(graph.path) else {}))


# running a recipe


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
        self.input, shape = images[0], images[0].shape
        if shape[0] not in (1, None):
            raise GramLoopError(f"{graph.path} takes {shape[0]} images at once; export it for one")
        self.channels_last = shape[3] == 3 and shape[1] != 3
        given = recipe.size or (None, None)
        sides = shape[1:3] if self.channels_last else shape[2:4]
        high, wide = (fixed or asked for fixed, asked in zip(sides, given, strict=True))
        if high is None or wide is None:
            raise GramLoopError(
                f'{graph.path} takes images of any size; a recipe next to it says which: {{"size": [height, width]}}'
            )
        self.size = high, wide
        if recipe.size not in (None, self.size):
            raise GramLoopError(f"{graph.path} takes {wide} x {high} pixels, not the recipe's {given}")

    def __call__(self, pixels: RGB) -> Prediction:
        height, width = size = (pixels.shape[0], pixels.shape[1])
        place = self._place(height, width)
        feeds = {self.input.name: self._prepare(pixels, place)}
        if any(each.name == _SIZES for each in self.graph.inputs):
            feeds[_SIZES] = np.array([[width, height]])
        found = self.graph.run(feeds)
        if self.recipe.read == "boxes":
            dims = {"boxes": 2, "scores": 1, "labels": 1}
            boxes, scores, labels = (self._output(found, role, many) for role, many in dims.items())
            there = scores > 0
            return self._detection(boxes[there].astype(np.float64), scores[there], labels[there], place, size)
        if self.recipe.read == "yolo":
            boxes, scores, labels = self._yolo(self._output(found, "boxes", 2).astype(np.float64))
            return self._detection(boxes, scores, labels, place, size)
        return self._map(found, place, size)

    def _place(self, height: int, width: int) -> Crop:
        """Where an image lies in the input."""
        into = self.size
        if self.recipe.fit == "stretch":
            return Crop(0, 0, *into)
        factor = min(into[0] / height, into[1] / width)
        high, wide = max(1, round(height * factor)), max(1, round(width * factor))
        # an odd row goes below
        return Crop(round((into[0] - high) / 2 - 0.1), round((into[1] - wide) / 2 - 0.1), high, wide)

    def _prepare(self, pixels: RGB, place: Crop) -> NDArray[Any]:
        recipe, size = self.recipe, (place.height, place.width)
        canvas = np.full((*self.size, 3), recipe.fill, np.float32)
        if recipe.resample == "bilinear" or pixels.shape[:2] == size:
            resized = resize(pixels, size)
        else:
            resized = np.asarray(cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR))
        canvas[place.top : place.top + place.height, place.left : place.left + place.width] = resized
        if self.input.dtype != "uint8":
            mean, std = (255 * np.array(each, np.float32) for each in (recipe.mean, recipe.std))
            canvas = (canvas - mean) / std
        return canvas[None] if self.channels_last else canvas.transpose(2, 0, 1)[None]

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

    def _map(self, found: Arrays, place: Crop, size: tuple[int, int]) -> Segmentation | Depth:
        read = self.recipe.read
        role, mode = "depth" if read == "disparity" else read, "nearest" if read == "labels" else "bilinear"
        output = self._output(found, role, 3 if read == "logits" else 2).astype(np.float32)
        values = torch.from_numpy(output.reshape(1, -1, *output.shape[-2:]))
        if (place.height, place.width) != self.size:
            values = place.of(_resized(values, self.size, mode))
        values = _resized(values, size, mode)[0]
        if role == "depth":
            return Depth(values[0].numpy(), disparity=read == "disparity")
        return Segmentation((values.argmax(0) if read == "logits" else values[0]).int().numpy())

    def _yolo(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[Any]]:
        """Corners, scores and labels of what Ultralytics' detectors return."""
        found, named = values.shape[0] - 4, len(self.classes)
        if values.shape[1] == 6 and found != named:  # suppressed in the graph
            values = values[values[:, 4] > 0]
            return values[:, :4], values[:, 4], values[:, 5]
        if found != named:
            raise GramLoopError(
                f"{self.graph.path.name} returns {found} classes for each box, and {named} are named"
            )
        labels, places = np.nonzero(values[4:] > _LEAST_SCORE)
        scores = values[4:][labels, places]
        best = np.argsort(-scores, kind="stable")[:_CANDIDATES]
        labels, scores, boxes = labels[best], scores[best], values[:4, places[best]].T
        corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)
        kept = _suppressed(corners, scores, labels)
        return corners[kept], scores[kept], labels[kept]

    def _detection(
        self,
        boxes: NDArray[Any],
        scores: NDArray[Any],
        labels: NDArray[Any],
        place: Crop,
        size: tuple[int, int],
    ) -> Prediction:
        height, width = size
        if self.recipe.box_unit == "input":
            boxes = boxes - [place.left, place.top, place.left, place.top]
            boxes = boxes * np.tile([width / place.width, height / place.height], 2)
        boxes, numbers = np.clip(boxes, 0, [width, height, width, height]), labels.astype(np.int64)
        if strange := sorted(set(numbers.tolist()) - set(self.classes)):
            raise GramLoopError(
                f"{self.graph.path.name} returned the class {strange[0]}, and {len(self.classes)} classes are named: "
                f"{min(self.classes)} to {max(self.classes)}"
            )
        return read_prediction((boxes, scores, numbers), size, self.graph.path.name)


def _resized(values: Tensor, size: tuple[int, int], mode: str) -> Tensor:  # (1, C, h, w)
    return values if values.shape[2:] == size else F.interpolate(values, size, mode=mode)


def _suppressed(boxes: NDArray[np.float64], scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """The boxes (corners) that no better one of their class overlaps, best first."""
    placed = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)  # left, top, width, height
    kept = cv2.dnn.NMSBoxesBatched(placed.tolist(), scores.tolist(), labels.tolist(), _LEAST_SCORE, _OVERLAP)
    return np.sort(np.asarray(kept, np.int64).reshape(-1))[:_KEEP]
