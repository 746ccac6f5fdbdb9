"""Says in the summary which program the tests of the Terraform module ran with."""

from __future__ import annotations

import pytest
from terraform import program, version


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if any("test_terraform" in report.nodeid for report in terminalreporter.getreports("passed")):
        terminalreporter.write_line(f"the Terraform module was tested with {program()}, {version()}")
