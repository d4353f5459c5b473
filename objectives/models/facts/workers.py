"""When several processes can share the batches of a trial of the built-in transformer; free of torch."""

from __future__ import annotations

from typing import Any

from objectives.held import ever_holds


def check_workers(config: Any, workers: int) -> None:
    """Raise ValueError if ``workers`` processes cannot share each batch of a `GptConfig`.

    The global batch is micro batch x accumulate x workers, so that the mean of the workers' gradients is the gradient
    of the batch. A loss scale and the loads of experts are of a whole batch.
    """
    parts = config.accumulate * workers
    if config.batch_size % parts:
        product = f"accumulate x workers = {config.accumulate} x {workers} = {parts}"
        raise ValueError(f"batch_size = {config.batch_size} is not a multiple of {product}")
    if config.experts:
        raise ValueError(f"experts = {config.experts} needs one process, and resources.workers is {workers}")
    if config.precision == "float16":
        raise ValueError(f"precision = float16 needs one process, and resources.workers is {workers}")
    if ever_holds(config, "precision"):
        raise ValueError(f"interventions on precision need one process, and resources.workers is {workers}")
