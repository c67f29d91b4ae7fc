"""A recipe: models, data, evaluations, and the tables and figures that are made of them, in one readable file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE, Method, read_methods, with_companions
from gramloop.util.json_files import checked, read_yaml

SHIPPED = ("paper", "mini")
_HERE = Path(__file__).parent
_WHAT = "a recipe for gramloop reproduce"


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a recipe: a misspelt field is refused."""


class Price(_Entry, frozen=True):
    """What one image costs, as far as it is known beforehand.

    Args:
        views: forward passes of an image.
        seconds: of one device by blocks of a view, the head and everything else included.
        bytes: stored for each method.
        note: where the seconds come from.
    """

    views: int = 1
    seconds: dict[int, float] = {}
    bytes: float = 0
    note: str = ""


class ModelEntry(_Entry, frozen=True):
    """A backbone and a head by the names of their files, or what ``--model`` takes; and how it is given images."""

    task: str
    backbone: str = ""
    head: str = ""
    model: str = ""
    source: str = ""
    depth: int = 40
    sizes: dict[str, Any] = {}
    price: Price = Price()


class DataEntry(_Entry, frozen=True):
    """A set: folders in which it may lie and what it holds there; or scenes to be drawn.

    Args:
        folders: below ``--data``; the first that holds the file or folder ``holds`` is taken.
        holds: what makes it this set.
        source: where it comes from.
        images: of every condition; of all domains together for a suite of domains.
        scenes: draw so many scenes instead.
        partial: accept a part of a public set.
    """

    folders: tuple[str, ...] = ()
    holds: str = "."
    source: str = ""
    images: int = 0
    scenes: int = 0
    partial: bool = False


class EvaluationEntry(_Entry, frozen=True):
    """One evaluation, in the words of ``gramloop evaluate``; ``only`` are ids of images, ``keep`` those to keep."""

    suite: str
    data: str
    model: str
    methods: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    severities: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    diagnostics: bool = False
    pictures: int = 0
    time_images: int = 0

    @property
    def all_methods(self) -> list[Method]:
        """The methods that are run, companions of diagnostics among them."""
        methods = read_methods(self.methods)
        return with_companions(methods) if self.diagnostics else methods


class ScoreColumn(_Entry, frozen=True):
    """A column of scores; with ``clean``, effective robustness."""

    evaluation: str
    title: str
    clean: str = ""


class ImageRow(_Entry, frozen=True):
    """A row of a figure: an image of an evaluation, by default the one that gains most; and what is shown of it.

    Args:
        evaluation: its name.
        condition: such as impulse/3, or */5 for all of severity 5.
        image: its id.
        crop: left, top, right and bottom in pixels.
        categories: names of the only classes that are drawn.
    """

    evaluation: str
    condition: str = ""
    image: str = ""
    crop: tuple[int, int, int, int] | None = None
    categories: tuple[str, ...] = ()


class Output(_Entry, frozen=True):
    """A table or a figure; its layout decides which of the other fields it needs and takes.

    Args:
        layout: one of `OUTPUT_LAYOUTS`.
        title: above it.
        method: compared with the baseline.
        methods: all that are shown.
        evaluation, evaluations: what it is made of; each of several methods is from the first evaluation that has it.
        clean: evaluations on clean images, for effective robustness.
        columns: scores of a table of methods.
        rows: images of a figure.
        lists: files with the ids of the images of each subset, one per line, next to the recipe; four subsets by the
            hash of the ids by default.
        top: how many classes are shown.
        image: the id of the one image of a diagnostic figure.
        drift: where the scale of all its drift maps ends.
    """

    layout: str
    title: str
    method: str = ""
    methods: tuple[str, ...] = ()
    evaluation: str = ""
    evaluations: tuple[str, ...] = ()
    clean: tuple[str, ...] = ()
    columns: tuple[ScoreColumn, ...] = ()
    rows: tuple[ImageRow, ...] = ()
    lists: tuple[str, ...] = ()
    top: int = 10
    image: str = ""
    drift: float | None = None

    @property
    def compared(self) -> tuple[str, ...]:
        """The methods that it is made of; a single one is compared with the baseline."""
        return self.methods or (BASELINE, self.method)

    @property
    def needs(self) -> set[str]:
        """The evaluations that it is made of."""
        columns = (name for each in self.columns for name in (each.evaluation, each.clean))
        rows = (row.evaluation for row in self.rows)
        return {self.evaluation, *self.evaluations, *self.clean, *columns, *rows} - {""}

    def check(self, name: str) -> None:
        """Refuse fields that the layout lacks or does not take."""
        _check_name(self.layout, OUTPUT_LAYOUTS, f"the layout of the output {name}")
        needed, optional = OUTPUT_LAYOUTS[self.layout]
        empty = Output(self.layout, self.title)
        for field in self.__struct_fields__:
            given, word = getattr(self, field) != getattr(empty, field), ""
            if given and field not in (*needed, *optional):
                word = "takes no"
            elif field in needed and not given:
                word = "needs"
            if word:
                raise GramLoopError(f"the output {name} {word} {field}; its layout is {self.layout}")


# the fields that each layout needs, and others that it takes
OUTPUT_LAYOUTS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "methods": (("methods", "columns"), ()),
    "intervals": (("method", "evaluations"), ()),
    "partitions": (("method", "evaluation"), ("lists",)),
    "placement": (("methods", "evaluations"), ("clean",)),
    "compute": (("methods", "evaluations"), ()),
    "families": (("method", "evaluation"), ()),
    "classes": (("method", "evaluation"), ("top",)),
    "severity": (("method", "evaluations"), ()),
    "consistency": (("method", "evaluation"), ()),
    "diagnostic": (("method", "image", "rows"), ("drift",)),
    "qualitative": (("method", "rows"), ()),
}


class Recipe(_Entry, frozen=True):
    """Everything that is run, and what is made of it.

    Args:
        title: what is reproduced with what.
        models, data: by names that evaluations use.
        evaluations: by the name of their folder.
        outputs: by the name that ``--only`` takes.
        printed: a file of numbers to compare with, next to the recipe.
        comparable: whether the model and the images are those of the printed numbers, so that differences mean something.
        titles: of methods and evaluations, in tables.
        folder: where the recipe lies.
    """

    title: str
    models: dict[str, ModelEntry]
    data: dict[str, DataEntry]
    evaluations: dict[str, EvaluationEntry]
    outputs: dict[str, Output]
    printed: str = ""
    comparable: bool = True
    titles: dict[str, str] = {}
    folder: str = ""

    def __post_init__(self) -> None:
        for name, one in self.evaluations.items():
            _check_name(one.model, self.models, f"the model of the evaluation {name}")
            _check_name(one.data, self.data, f"the data of the evaluation {name}")
            find_suite(one.suite).select(one.conditions or None, one.severities or None)
            read_methods(one.methods)
        for name, model in self.models.items():
            if bool(model.model) == bool(model.head):
                raise GramLoopError(f"the model {name} needs either a head (and its backbone) or a model")
        for name, output in self.outputs.items():
            output.check(name)
            for each in output.needs:
                _check_name(each, self.evaluations, f"an evaluation of the output {name}")

    def select(self, only: Sequence[str] = ()) -> dict[str, Output]:
        """The outputs of these names; all by default."""
        for name in only:
            _check_name(name, self.outputs, "--only")
        return {name: output for name, output in self.outputs.items() if not only or name in only}

    def needed(self, outputs: Mapping[str, Output]) -> dict[str, EvaluationEntry]:
        """The evaluations that these outputs are made of, in the recipe's order, with the methods that they need.

        Without methods where only their cost is measured.
        """
        found = {}
        for name, one in self.evaluations.items():
            users = [output for output in outputs.values() if name in output.needs]
            layouts = {each.layout for each in users}
            scored = {method for each in users if each.layout != "compute" for method in each.compared}
            if users:
                found[name] = replace(
                    one,
                    methods=tuple(text for text in one.methods if read_methods([text])[0].name in scored),
                    diagnostics=one.diagnostics and "consistency" in layouts,
                    time_images=one.time_images if "compute" in layouts else 0,
                )
        return found

    def timed_methods(self, name: str, outputs: Mapping[str, Output]) -> list[Method]:
        """The methods of an evaluation whose cost these outputs show."""
        users = [each for each in outputs.values() if each.layout == "compute" and name in each.needs]
        wanted = {method for each in users for method in each.methods}
        return [each for each in read_methods(self.evaluations[name].methods) if each.name in wanted]

    def method(self, evaluations: Iterable[str], name: str) -> Method:
        """A method of some evaluations by its name."""
        methods = [each for one in evaluations for each in self.evaluations[one].all_methods]
        return next(each for each in methods if each.name == name)

    def title_of(self, name: str) -> str:
        """A method or an evaluation as tables call it."""
        return self.titles.get(name, name)

    def numbers(self, output: str) -> Mapping[str, Sequence[float]]:
        """The printed numbers of an output by row, in the order of its columns."""
        if not self.printed:
            return {}
        path, what = Path(self.folder) / self.printed, "a file of printed numbers"
        return checked(read_yaml(path, what), _NUMBERS, str(path), what).get(output, {})


_NUMBERS = dict[str, dict[str, list[float]]]


def _check_name(name: str, names: Iterable[str], what: str) -> None:
    if name not in (listed := list(names)):
        raise GramLoopError(f"{what} is {name!r}, which is none of {', '.join(listed)}")


def read_recipe(name: str | Path) -> Recipe:
    """Read a recipe.

    Args:
        name: that of a shipped one (paper, mini), or a YAML file.
    """
    path = _HERE / f"{name}.yaml" if str(name) in SHIPPED else Path(name)
    if not path.is_file():
        raise GramLoopError(f"there is no recipe {str(name)!r}; give a YAML file, or {' or '.join(SHIPPED)}")
    content = read_yaml(path, _WHAT)
    if isinstance(content, dict):
        content = {**content, "folder": str(path.parent)}
    return checked(content, Recipe, str(path), _WHAT)
