"""What GramLoop says when it is used in a way that cannot work."""


class GramLoopError(ValueError):
    """A mistake of the caller: one sentence that names the value and what would have been right."""


class GramLoopWarning(UserWarning):
    """Something that works, but probably not as the caller believes."""


class UntunedWindowWarning(GramLoopWarning):
    """The window is a guess: it was not measured on this backbone."""


def short_repr(value: object) -> str:
    """A value for an error message: one line, not too long; tuples as lists, as files have them."""
    try:
        text = " ".join(repr(list(value) if isinstance(value, tuple) else value).split())
    except Exception:  # a message about a value must not fail because of the value
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"
