"""The paper in one command: recipes, what they run, and their tables and figures next to the printed numbers."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.reproduce.files import FoundFiles
    from gramloop.reproduce.recipe import Recipe, read_recipe
    from gramloop.reproduce.running import Reproduction
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["FoundFiles", "Recipe", "Reproduction", "read_recipe"]
