"""Whether a machine computes what it should."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.check.checking import Case, CheckResult, check_machine
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["Case", "CheckResult", "check_machine"]
