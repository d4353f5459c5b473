"""A text that is larger than memory: how much of that a process takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRAIN = """
import sys
sys.path.insert(0, "tests")
from pathlib import Path
from pack_cases import trainer_of
from objectives.base import GptConfig
config = GptConfig(steps=300, text=(sys.argv[1],), width=8, heads=2, depth=1, batch_size=64, context=32)
trainer = trainer_of("gpt", [config], [0])
for _ in range(300):
    trainer.step()
trainer.validate([0])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(trainer.describe()["text_bytes"], int(peak.split()[1]) // 1024)
"""


def trained(text: Path, cache: Path) -> tuple[int, int]:
    """The length of the text, and the most memory that a process took in MiB."""
    environment = {**os.environ, "SWEEP_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(text)], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    num_bytes, peak = done.stdout.split()
    return int(num_bytes), int(peak)


def sparse(path: Path, num_bytes: int) -> None:
    """A file with text at its ends and a hole between them, which takes little of the disk."""
    with path.open("wb") as file:
        file.write(b"the beginning\n" * 100)
        file.truncate(num_bytes - 100)
        file.seek(0, os.SEEK_END)
        file.write(b"the end, and more\n" * 10)
    os.truncate(path, num_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "is_copied"), [([2 * 10**9], False), ([2 * 10**8, 10**8], True)])
def test_a_large_text_takes_little_more_memory_than_a_small_one(
    tmp_path: Path, sizes: list[int], is_copied: bool
) -> None:
    (tmp_path / "large").mkdir()
    sparse(tmp_path / "small.txt", 20_000)
    for number, size in enumerate(sizes):
        sparse(tmp_path / "large" / f"{number}.txt", size)
    _, small_peak = trained(tmp_path / "small.txt", tmp_path / "cache")
    num_bytes, peak = trained(tmp_path / "large", tmp_path / "cache")
    assert num_bytes == sum(sizes) + len(sizes) - 1
    assert peak - small_peak < 100  # MiB; 300 are allowed
    assert len([*(tmp_path / "cache" / "texts").glob("*.bin")]) == is_copied
