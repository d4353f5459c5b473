import numpy as np
import pytest

from orchestrator.detection.collapse import collapsed_since


def readings(gini, dead=None) -> dict[str, np.ndarray]:
    columns = {"router_gini": gini, **({} if dead is None else {"router_dead": dead})}
    numbers = {name: np.array(values, dtype=float) for name, values in columns.items()}
    return {"step": 10 * np.arange(len(gini)), **numbers}


@pytest.mark.parametrize(
    ("telemetry", "since"),
    [
        (readings([0.1] * 8 + [0.6] * 2), 80),
        (readings([0.6] * 10), 0),
        (readings([0.6] * 9 + [0.5]), None),  # 0.5 is not above it
        (readings([0.1, 0.6, 0.1, 0.7, 0.7]), 30),
        (readings([0.1] * 20), None),
        (readings([0.1] * 19 + [0.6]), None),  # the last tenth is two readings
        (readings([0.1] * 18 + [0.6] * 2), 180),
        (readings([0.1] * 4, [0, 0, 1, 2]), 20),
        (readings([0.1, 0.6, 0.1, 0.1], [0, 0, 0, 1]), 30),
        (readings([np.nan] * 2 + [0.7, 0.7, np.nan]), 20),
        (readings([np.nan] * 3), None),
        ({"step": np.arange(3), "v_lag/all": np.ones(3)}, None),
        ({}, None),
    ],
)
def test_a_router_has_collapsed_if_the_last_tenth_of_its_readings_says_so(telemetry, since: int | None) -> None:
    assert collapsed_since(telemetry) == since
