"""Names that moved."""

from gramloop.errors import short_repr as shown  # noqa: F401
from gramloop.replay.config import Field  # noqa: F401

__all__ = ["Field", "shown"]
