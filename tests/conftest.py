"""What all tests share: properties are checked however slow or busy the machine is; outdated tests are skipped by name."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# tests that still describe commands as they were before the rebuild; each has to be rewritten or removed
OUTDATED = Path(__file__).with_name("outdated.txt").read_text().split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip outdated tests, visibly."""
    for item in items:
        if item.nodeid.partition("[")[0] in OUTDATED:
            item.add_marker(pytest.mark.skip(reason="describes a command as it was before the rebuild"))
