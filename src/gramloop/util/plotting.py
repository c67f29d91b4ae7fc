"""What ``plot`` methods share: matplotlib where it is installed, and maps of drift and gate side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Map = NDArray[np.floating[Any]]  # (h, w)

MOST = 6  # replays in one row; beyond that the eye sees none of them
_SIDE = 3.2  # inches of a pane


def pyplot() -> Any:
    """matplotlib.pyplot, so that figures appear where people are used to see them."""
    try:
        import matplotlib.pyplot
    except ModuleNotFoundError as error:
        raise GramLoopError(
            "plot needs matplotlib, which is not installed; pip install 'gramloop[eval]' brings it"
        ) from error
    return matplotlib.pyplot


def make_axes(ax: Axes | None, shape: tuple[int, int]) -> Axes:
    """The given axes, or those of a new figure for a picture of this height and width."""
    if ax is not None:
        return ax
    height = min(max(_SIDE * 1.6 * shape[0] / shape[1], 1.0), 8.0)
    made: Axes = pyplot().subplots(figsize=(_SIDE * 1.6, height + 0.5), layout="constrained")[1]
    return made


def draw_map(ax: Axes, values: Map, title: str, colours: str, low: float, high: float) -> None:
    """One map with its scale; what is not finite stays white."""
    shown = ax.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    ax.set_title(title, fontsize=10)
    ax.set_axis_off()
    bar: Any = ax.figure.colorbar(shown, cax=ax.inset_axes((1.02, 0.0, 0.045, 1.0)))
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    if high < 1e-2:
        bar.formatter.set_powerlimits((0, 0))
        bar.ax.yaxis.get_offset_text().set_fontsize(7)


def plot_replays(drift: Sequence[Map], gate: Sequence[Map], post_drift: Map | None = None) -> Any:
    """Drift above gate, a column for each replay, and the drift of what was accepted: the axes, (2, columns)."""
    import numpy as np

    if not drift:
        raise GramLoopError(
            "nothing was measured, so there is no map to plot; a replay with a trace measures"
        )
    kept = sorted({*range(min(len(drift), MOST - 1)), len(drift) - 1})
    columns = len(kept) + (post_drift is not None)
    rows, wide = drift[0].shape
    height = min(max(_SIDE * rows / wide, 0.8), 6.0)
    size = ((_SIDE + 0.5) * columns, 2 * (height + 0.4))
    _, axes = pyplot().subplots(2, columns, figsize=size, layout="constrained", squeeze=False)
    measured = [drift[index] for index in kept] + ([] if post_drift is None else [post_drift])
    finite = np.concatenate([each[np.isfinite(each)] for each in measured])
    high = (float(np.percentile(finite, 99)) if finite.size else 0.0) or 1e-12
    for column, index in enumerate(kept):
        name = f"of replay {index + 1}" if len(drift) > 1 else ""
        draw_map(axes[0, column], drift[index], f"drift {name}".strip(), "magma", 0.0, high)
        mean = float(np.nanmean(gate[index])) if np.isfinite(gate[index]).any() else float("nan")
        draw_map(axes[1, column], gate[index], f"gate {name} (mean {mean:.2f})", "cividis", 0.0, 1.0)
    if post_drift is not None:
        draw_map(axes[0, -1], post_drift, "drift of what was accepted", "magma", 0.0, high)
        axes[1, -1].set_axis_off()
    return axes
