"""The report as one page: a file that opens from disk and asks no network for anything."""

from gramloop.report.page.rendering import render

__all__ = ["render"]
