"""What all tests share."""

from typing import Any

import pytest
from hypothesis import settings

# Machines that run tests are shared: how long an example takes says nothing about the code.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")


FAULTS = ("compose", "once", "redis", "services")
"""Beginnings of the files whose services are killed, paused or their own; the other files share theirs and wait."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests in several processes: what needs services in four of them, one fault at a time; the others one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if not nodeid.startswith("tests/integration/"):
                return nodeid
            name = nodeid.removeprefix("tests/integration/test_")
            if name.startswith("chaos"):
                return "days of chaos" if "a_day_of_chaos" in name else "chaos"
            return "services with faults" if name.startswith(FAULTS) else "services"

    return Scheduling(config, log)
