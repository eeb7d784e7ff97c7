"""What lies in this room is slow, except for one quick example of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test below this directory, unless it says that it is quick."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("quick") is None:
            item.add_marker(pytest.mark.slow)
