"""Names that moved."""

from gramloop.replay.adaptive import image_noise as noise  # noqa: F401
from gramloop.replay.adaptive import noise_response  # noqa: F401

__all__ = ["noise", "noise_response"]
