"""What importing the detector costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import orchestrator
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import SpikeDetector


def test_the_detector_is_found_at_the_top_and_costs_nothing_until_then() -> None:
    code = (
        "import sys, orchestrator; assert 'numpy' not in sys.modules;"
        "from orchestrator import SpikeDetector, StoppingConfig; assert 'numpy' in sys.modules;"
        "assert SpikeDetector(config=StoppingConfig()).update(float('nan'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert orchestrator.SpikeDetector is SpikeDetector
    assert orchestrator.StoppingConfig is StoppingConfig
    with pytest.raises(AttributeError, match="Detector"):
        _ = orchestrator.Detector
