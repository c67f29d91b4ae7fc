"""What GramLoop says when it is used in a way that cannot work."""


class GramLoopError(ValueError):
    """A mistake of the caller: one sentence that names the value and what would have been right."""


class GramLoopWarning(UserWarning):
    """Something that works, but probably not as the caller believes."""


class UntunedWindowWarning(GramLoopWarning):
    """The window is a guess: nobody measured where replay helps on this backbone."""


class MeasuredElsewhereWarning(GramLoopWarning):
    """The setting was measured on this backbone, but with another head, or to little gain."""
