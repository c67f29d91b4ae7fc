"""Imported once by the fork server, so that workers start with everything they need in memory."""

from __future__ import annotations

from contextlib import suppress

import gramloop.evaluate.engines.local
import gramloop.models.tiny
import gramloop.tasks.dense_detect  # noqa: F401
from gramloop.models.hf import transformers_module

with suppress(ImportError):
    transformers_module("models.dinov3_vit.modeling_dinov3_vit")
