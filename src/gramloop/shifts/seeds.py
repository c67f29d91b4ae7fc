"""One random generator per shifted image, determined by what the image is and never by when it is made.

The fields are hashed, so the same image gets the same pixels in any order, shard, process and batch. The
recipe version is one of the fields: it goes up whenever a shift changes the pixels it makes.
"""

import hashlib
import json

import numpy as np

RECIPE_VERSION = 1


def generator(suite: str, condition: str, severity: int, image_id: str | int) -> np.random.Generator:
    """The generator of one image under one condition; the image ids 7 and "7" are the same image."""
    # JSON quotes its strings, so no choice of names can make two different lists of fields read alike.
    fields = json.dumps([RECIPE_VERSION, suite, condition, int(severity), str(image_id)])
    digest = hashlib.sha256(fields.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def signs(image_id: str | int, suite: str = "p") -> tuple[int, int]:
    """The directions (x, y) of one image, each 1 or -1: the same at every severity, for every transform."""
    x, y = generator(suite, "signs", 0, image_id).integers(0, 2, 2) * 2 - 1
    return int(x), int(y)
