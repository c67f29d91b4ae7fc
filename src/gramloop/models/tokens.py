"""How many patches a ViT may see at once: its attention weighs every pair of them, so work grows with the square."""

from __future__ import annotations

import math

from gramloop.errors import GramLoopError

MOST_TOKENS = (
    1 << 15
)  # 2048 x 4096 pixels in patches of 16; a pass over more takes minutes to hours without a GPU


class TooManyTokensError(GramLoopError):
    """An image whose view has more patches than `MOST_TOKENS`."""


def refuse_many_tokens(rows: int, columns: int, what: str, advice: str = "") -> None:
    """Refuse a view of more than `MOST_TOKENS` patches, and say what it would take.

    Args:
        rows, columns: of patches, in the largest view of an image.
        what: the image and how it is shown, such as "an image of 5000 x 2 at a short side of 64".
        advice: what would help.
    """
    tokens = rows * columns
    if tokens <= MOST_TOKENS:
        return
    memory = 4 * tokens**2 / 1e9
    raise TooManyTokensError(
        f"{what} becomes {tokens:,} tokens at once ({columns:,} x {rows:,} patches), more than {MOST_TOKENS:,}: in every "
        f"head of every block attention would weigh {tokens**2:.1e} pairs, {memory:,.0f} GB if held together; "
        f"{advice or 'cut it into pieces, or show it smaller'}"
    )


def largest_short_side(height: int, width: int, multiple: int, patch: int) -> int:
    """The longest short side, a multiple of ``multiple``, with which an image stays within the tokens; 0 if none does."""
    ratio = max(height, width) / min(height, width)
    short = int(math.sqrt(MOST_TOKENS / ratio) * patch) // multiple * multiple
    while short and (short / patch) * math.ceil(short * ratio / patch) > MOST_TOKENS:
        short -= multiple
    return short
