from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_kit import LONGER, SWEEP, end_drivers, undisturbed_results, write_sweep


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple]:
    """What the sweep finds when nothing goes wrong."""
    return undisturbed_results(tmp_path_factory.mktemp("undisturbed"), SWEEP)


@pytest.fixture(scope="session")
def undisturbed_longer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple]:
    """What the sweep of three times the steps finds when nothing goes wrong."""
    return undisturbed_results(tmp_path_factory.mktemp("longer"), LONGER)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the sweep file."""
    write_sweep(tmp_path)
    yield tmp_path
    end_drivers()
