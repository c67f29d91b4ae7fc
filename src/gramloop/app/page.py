"""The page: two tabs, a calm look, and nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from gramloop.app.results_tab import results_tab
from gramloop.app.trial import Bench
from gramloop.app.try_tab import try_tab

TITLE = "GramLoop"
_FONTS = ("system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")  # those of the machine
# Gradio keeps for every visitor what the page showed last, some 2 MB, long after the page was closed. Nothing here needs it:
# who is forgotten goes on as before.
_SESSIONS = 16
_ABOUT = (
    "# GramLoop\nShift an image, treat it, and see what a frozen model makes of it: as it is, and with a mitigation. "
    "Nothing leaves this machine."
)
CSS = """
.gradio-container { max-width: 1500px !important; margin: 0 auto !important; }
.gl-controls { position: sticky; top: 8px; }
#trial, #scores, #images { min-height: 2rem; min-width: 0; }
#images .gl-line { margin-top: 1.4rem; }
.gl-line { font-weight: 600; margin: 0 0 .6rem; overflow-wrap: anywhere; }
.gl-text { color: color-mix(in srgb, var(--body-text-color) 78%, transparent); font-size: .85rem; margin: .3rem 0; }
.gl-notice { padding: .7rem .9rem; border-radius: 8px; border-left: 4px solid; margin: .3rem 0; overflow-wrap: anywhere; }
.gl-problem { border-color: #d55e00; background: color-mix(in srgb, #d55e00 9%, var(--background-fill-primary)); }
.gl-hint { border-color: #0072b2; background: color-mix(in srgb, #0072b2 7%, var(--background-fill-primary)); }
.gl-grid { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 215px), 1fr)); }
.gl-wide { grid-template-columns: minmax(0, 460px); }
.gl-grid figure { margin: 0; min-width: 0; }
.gl-grid img { width: 100%; height: auto; display: block; border-radius: 6px; border: 1px solid var(--border-color-primary);
  image-rendering: auto; }
.gl-grid figcaption { font-size: .85rem; padding: .3rem .1rem 0; line-height: 1.35; }
.gl-grid figcaption small { display: block; color: color-mix(in srgb, var(--body-text-color) 78%, transparent); }
.gl-legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: .7rem 0 .2rem; font-size: .85rem; }
.gl-legend li { display: flex; align-items: center; gap: .4rem; margin: 0; }
.gl-legend i { width: .85rem; height: .85rem; border-radius: 3px; border: 1px solid rgba(0, 0, 0, .25); flex: none; }
.gl-tables { display: grid; gap: .6rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); align-items: start; }
.gl-tables > * { min-width: 0; }
.gl-scroll { overflow-x: auto; contain: inline-size; }
table.gl-table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; width: auto; margin: 0; }
table.gl-table, table.gl-table thead, table.gl-table tbody, table.gl-table tr { border: 0 !important; }
table.gl-table caption { text-align: left; color: color-mix(in srgb, var(--body-text-color) 78%, transparent); padding-bottom: .2rem; caption-side: top; }
table.gl-table th, table.gl-table td { padding: .25rem .7rem !important; border: 0 !important; text-align: right !important; white-space: nowrap;
  border-bottom: 1px solid var(--border-color-primary) !important; background: none !important; }
table.gl-table th:first-child, table.gl-table .gl-text { text-align: left !important; font-size: inherit; color: inherit; white-space: normal; }
table.gl-table tbody th { font-weight: 500; }
table.gl-table .gl-best { font-weight: 700; }
table.gl-table .gl-up { color: #00704f; } table.gl-table .gl-down { color: #b03a00; }
.dark table.gl-table .gl-up { color: #4fd6a8; } .dark table.gl-table .gl-down { color: #ff9a62; }
@media (max-width: 720px) { .gl-controls { position: static; } .gl-grid { grid-template-columns: repeat(auto-fit, minmax(min(100%, 130px), 1fr)); gap: .6rem; }
  table.gl-table { font-size: .8rem; } table.gl-table th, table.gl-table td { padding: .2rem .35rem !important; }
  .gl-wide { grid-template-columns: minmax(0, 1fr); } .gradio-container { padding: 8px !important; } }
"""


def look() -> Any:
    """The theme: quiet colours, and fonts that every machine has."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.slate,
        font=_FONTS,
        font_mono=("ui-monospace", "Consolas", "monospace"),
        radius_size=gr.themes.sizes.radius_md,
    )


def build(bench: Bench, scenes: list[Path]) -> Any:
    """The page with both tabs."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600), fill_width=True) as page:
        gr.Markdown(_ABOUT)
        with gr.Tabs():
            with gr.Tab("Try an image", id="try"):
                run, inputs, outputs, quiet = try_tab(bench, scenes)
            with gr.Tab("Open results", id="results"):
                results_tab(bench)
        page.load(run, inputs, outputs, **quiet)
    page.state_session_capacity = _SESSIONS
    page.queue(api_open=False, max_size=64, default_concurrency_limit=4)
    return page
