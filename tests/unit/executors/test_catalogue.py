"""What an executor would need that this machine lacks is said before it starts."""

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.executors import catalogue
from orchestrator.executors.catalogue import ExecutorOptions, executor_loader
from orchestrator.sweepfile.sections import ResourcesConfig


@pytest.mark.parametrize("needs", [{"gpus": 0.5}, {"workers": 2, "gpus_per_worker": 1}])
@pytest.mark.parametrize("name", ["ray", "inline"])
def test_gpus_are_refused_where_this_machine_would_train_and_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, needs: dict
) -> None:
    options = ExecutorOptions(tmp_path, ResourcesConfig(**needs))
    monkeypatch.setattr(catalogue, "_GPU_FILES", ())
    with pytest.raises(InputError) as caught:
        executor_loader(name, options)()
    assert caught.value.problems[0].key == list(needs)[-1]
    monkeypatch.setattr(catalogue, "_GPU_FILES", ("dev/null",))
    executor_loader(name, options)()


def test_gpus_of_a_cluster_are_its_own_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_GPU_FILES", ())
    executor_loader("ray", ExecutorOptions(tmp_path, ResourcesConfig(gpus=1), address="localhost:1"))()


def test_an_unknown_executor_is_refused_with_the_names_that_the_command_takes(tmp_path: Path) -> None:
    options = ExecutorOptions(tmp_path, ResourcesConfig())
    for more, remedy in (((), "choose ray, slurm or inline"), (("auto",), "choose ray, slurm, inline or auto")):
        with pytest.raises(InputError) as caught:
            executor_loader("dask", options, *more)
        assert caught.value.problems[0].remedy == remedy
