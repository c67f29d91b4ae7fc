"""Imported once by the fork server, so that workers start with everything they need in memory."""

from __future__ import annotations

from contextlib import suppress

import gramloop.evaluate.engines.local
import gramloop.models.tiny
import gramloop.tasks.dense_detect  # noqa: F401

with suppress(ImportError):
    pass
