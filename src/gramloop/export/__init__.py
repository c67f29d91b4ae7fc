"""Export: a model with its mitigation for torch, onnxruntime or OpenVINO, checked when it is written."""

from typing import TYPE_CHECKING

from gramloop.lazy import calls, lazy_names

if TYPE_CHECKING:
    from gramloop.export.exporting import ExportedFile, export_model
    from gramloop.export.formats import About
else:
    __getattr__, __dir__ = lazy_names(__name__)
    calls(__name__, "export_model")  # gramloop.export(model, path, …)

__all__ = ["About", "ExportedFile", "export_model"]
