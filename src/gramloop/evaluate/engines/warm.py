"""Imported once by the fork server, so that workers start with everything they need in memory."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import gramloop.evaluate.engines.local
import gramloop.models.tiny
import gramloop.tasks.dense_detect  # noqa: F401

with suppress(ImportError):
    import transformers.models.dinov3_vit.modeling_dinov3_vit  # noqa: F401
with suppress(ImportError):
    import_module("pandas")  # pyarrow looks for it when it makes a table
