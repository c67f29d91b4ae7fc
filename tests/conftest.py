"""What all tests share: properties are checked however slow or busy the machine is; commands that a test runs are listed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the examples of ``--help`` with their exit codes, so that CI's log shows what was run."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = [value for report in reports for name, value in report.user_properties if name == "example"]
    if lines:
        terminalreporter.section("examples of --help")
        for line in lines:
            terminalreporter.write_line(str(line))
