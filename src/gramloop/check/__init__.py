"""The first minute on a machine: does what is computed here agree with what is known?"""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.check.case import Case
    from gramloop.check.checking import Checked, check_machine
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["Case", "Checked", "check_machine"]
