"""Train packs as trials of Ray Tune.

Tune assigns packs to workers and transports their reports; it decides nothing and stores no results. It runs in a
thread and gets packs from a queue through its Searcher interface.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import shutil
import signal
import socket
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

# Ray reads these at import. Tune's loggers would write every report to disk, and its checkpoints of the experiment are
# not needed here. A private cluster sends no usage statistics.
for _name, _value in {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output engine prints even in silent mode
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_MAX_PENDING_TRIALS_PG": "16",
}.items():
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402
from ray import tune  # noqa: E402
from ray.tune.progress_reporter import TrialProgressCallback  # noqa: E402
from ray.tune.schedulers import FIFOScheduler  # noqa: E402
from ray.tune.search import Searcher  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

from orchestrator.base.errors import ExecutorError, InputError, Problem, SweepError  # noqa: E402
from orchestrator.base.files import keep_token  # noqa: E402
from orchestrator.base.packs import Event, LaunchedPack, Pack, PackLost, PackStarted, Report, StackedPack  # noqa: E402
from orchestrator.base.processes import SCRATCH, is_alive  # noqa: E402
from orchestrator.executors.pack_registry import PackRegistry  # noqa: E402
from orchestrator.executors.ray_ranks import TIMEOUT_S, RayLauncher, release_room  # noqa: E402
from orchestrator.executors.ray_start import (  # noqa: E402
    CONNECT_TIMEOUT_S,
    check_reachable,
    inherit_environment,
    ray_processes,
    without_helpers,
)
from orchestrator.worker.run import run_pack  # noqa: E402

_STOP_TIMEOUT_S = 4.0
_SECONDS_PER_CHECK = 2.0
_IDLE_S = 30.0  # after which a worker without a pack is released


def train_pack(config: dict[str, Any]) -> None:
    """Train a pack on a worker, passing every report to Tune; never raises."""
    registry, pack = ray.get_actor(config["registry"]), config["pack"]
    node_id = ray.get_runtime_context().get_node_id()
    resume: Any = ray.get(registry.begin.remote(pack.pack_id, node_id, os.getpid()), timeout=TIMEOUT_S)
    if isinstance(pack, StackedPack):
        pack = replace(pack, resume=resume)
    launcher = None
    if isinstance(pack, LaunchedPack) and pack.launch.workers > 1:
        launcher = RayLauncher(pack.cpus, pack.launch.gpus_per_worker, pack.pack_id)
    elif isinstance(pack, StackedPack) and pack.workers > 1:
        launcher = RayLauncher(pack.cpus, 0.0, pack.pack_id)
    for report in run_pack(pack, lambda: ray.get(registry.is_pausing.remote()), launcher):
        # Wrapped, so that Tune sees neither missing nor non-finite metrics.
        tune.report({"report": report})


def _is_elastic(pack: Pack) -> bool:
    """Whether a pack reserves the places of its processes itself."""
    return bool(pack.sizes if isinstance(pack, StackedPack) else isinstance(pack, LaunchedPack) and pack.launch.sizes)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


class Mailbox:
    """State shared by the driver's thread and Tune's thread; a copy is the same mailbox."""

    def __init__(self, registry: str) -> None:
        self.registry = registry
        self.packs: queue.SimpleQueue[Pack] = queue.SimpleQueue()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.is_stopping = threading.Event()

    def __deepcopy__(self, memo: dict[int, Any]) -> Mailbox:
        return self

    def __reduce__(self) -> Any:
        return (Mailbox, (self.registry,))  # Tune pickles its settings for a restore, which is never used


class PackQueue(Searcher):
    """Proposes the packs that the driver has queued, until the driver stops."""

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__()
        self._mailbox = mailbox

    def suggest(self, trial_id: str) -> Any:
        """Return the next pack, None while the queue is empty, or FINISHED once the driver stops."""
        if self._mailbox.is_stopping.is_set():
            return Searcher.FINISHED
        try:
            return {"pack": self._mailbox.packs.get_nowait(), "registry": self._mailbox.registry}
        except queue.Empty:
            return None

    def _ignore(self, *arguments: Any, **options: Any) -> None:
        """Do nothing: the driver reads the reports, and the ledger has everything."""

    on_trial_complete = save = restore = save_to_dir = _ignore


class InOrder(FIFOScheduler):
    """Starts packs in order, and releases the one worker that Tune keeps for a next pack if none comes for a while.

    On a cluster others may use its CPU and GPU then; the next pack starts a new worker.
    """

    def __init__(self) -> None:
        super().__init__()
        self._busy_at = time.monotonic()

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the next trial; called at each turn of Tune's loop."""
        controller, now = tune_controller._tune_controller, time.monotonic()
        if not controller._actor_cache.num_cached_objects:
            self._busy_at = now
        elif now - self._busy_at > _IDLE_S:
            controller._cleanup_cached_actors(force_all=True)
        return super().choose_trial_to_run(tune_controller)


class StopOnRequest(tune.Stopper):
    """Ends all trials once the driver asks to stop."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def __call__(self, trial_id: str, result: Any) -> bool:
        """Whether this trial ends now."""
        return self.stop_all()

    def stop_all(self) -> bool:
        """Whether all trials end now."""
        return self._mailbox.is_stopping.is_set()


class Forward(TrialProgressCallback):
    """Passes reports to the driver, and reports packs as lost if they end without a last report.

    Without a callback of this class, Tune would add its own, which prints every result.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._over: set[str] = set()

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """Forward the start of a pack."""
        self._mailbox.events.put(PackStarted(trial.config["pack"].pack_id))

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """Forward a report, and remove it from the result so that Tune stores no curves."""
        report: Report | None = result.pop("report", None)
        if report is not None:
            if report.ending is not None:
                self._over.add(report.pack_id)
            self._mailbox.events.put(report)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """Report the pack as lost unless its last report arrived."""
        self._ended(trial, "it ended without a last report")

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """Report the pack as lost: its process died."""
        self._ended(trial, "its worker process died")

    def _ended(self, trial: Any, reason: str) -> None:
        pack_id = trial.config["pack"].pack_id
        if pack_id not in self._over:
            if _is_elastic(trial.config["pack"]):
                release_room(pack_id)
            self._mailbox.events.put(PackLost(pack_id, reason))
        self._over.discard(pack_id)


class RayTuneExecutor:
    """Packs on a running Ray cluster (``address``) or on a private cluster on this machine."""

    name = "ray"

    def __init__(
        self,
        cpus: int,
        gpus: float,
        parallel: int | None,
        workers: int,
        address: str | None,
        fewest: int | None = None,
    ) -> None:
        """Connect to a cluster, or start a private one, for ``parallel`` packs at a time.

        Each pack takes ``workers`` times ``cpus`` and ``gpus``, possibly on different nodes; with ``fewest``, it takes
        at least so many. Raises InputError if the cluster is too small for one pack.
        """
        if address is not None:
            check_reachable(address)
        else:
            # A stale address must not send a private sweep to another cluster.
            os.environ.pop("RAY_ADDRESS", None)
            keep_token(Path.home() / ".ray" / "auth_token")  # Ray would make it with the umask's mode
        # A private Ray avoids TMPDIR, since socket paths have a length limit. Its logs are removed with the folder.
        self._scratch = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-", dir="/tmp")
        num_cpus: int | None = max(len(os.sched_getaffinity(0)), cpus * (fewest or workers) * (parallel or 1))
        num_cpus = num_cpus if address is None else None
        private: dict[str, Any] = {"_temp_dir": f"{self._scratch}/ray"} if address is None else {}
        try:
            with without_helpers() if address is None else contextlib.nullcontext():
                ray.init(
                    address=address or "local",
                    num_cpus=num_cpus,
                    include_dashboard=False if address is None else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    configure_logging=True,
                    **private,
                )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            shutil.rmtree(self._scratch, ignore_errors=True)
            what = f"cannot reach Ray at {address}" if address else "cannot start Ray"
            raise SweepError(f"{what}: {cause}\n    remedy: --executor inline trains without Ray") from error
        self._needs = (cpus, gpus, parallel, workers)
        self._fewest = fewest
        self._failure: BaseException | None = None
        try:
            self.slots = self._count_slots()
            self._processes = ray_processes() if address is None else {}
            if address is None:
                inherit_environment()
            self._gcs = ray.get_runtime_context().gcs_address
            self._mailbox = Mailbox(f"sweep-{uuid.uuid4().hex[:12]}")
            # On the driver's node, since another node could be lost while the driver survives.
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            registry = ray.remote(num_cpus=0)(PackRegistry).options(
                name=self._mailbox.registry, scheduling_strategy=here
            )
            self._registry: Any = registry.remote()
        except BaseException:
            ray.shutdown()
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        self._next_check = time.monotonic() + _SECONDS_PER_CHECK
        self._thread = threading.Thread(target=self._run_tune, args=self._needs, daemon=True, name="ray-tune")
        self._thread.start()

    def submit(self, pack: Pack) -> None:
        """Queue ``pack``."""
        if isinstance(pack, StackedPack) and pack.resume is not None:
            ray.get(self._registry.store.remote(pack.pack_id, pack.resume), timeout=TIMEOUT_S)
            pack = replace(pack, resume=None)
        self._mailbox.packs.put(pack)

    def poll(self, timeout_s: float) -> list[Event]:
        """Return events so far, waiting for the first. Raises ExecutorError if Ray or Tune has failed."""
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._mailbox.events.get(timeout=timeout_s))
            while True:
                events.append(self._mailbox.events.get_nowait())
        if not events and not self._thread.is_alive():
            raise ExecutorError(f"Ray Tune ended unexpectedly: {self._failure or 'no cause given'}")
        if time.monotonic() >= self._next_check:
            self._check()
        return events

    def pause(self) -> None:
        """Drop queued packs, and ask the workers to pause."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._mailbox.packs.get_nowait()
        self._registry.pause.remote()

    def kill(self, pack_id: str) -> None:
        """Kill the process that trains a pack, on any node."""
        with contextlib.suppress(ray.exceptions.RayError):
            worker = ray.get(self._registry.worker_of.remote(pack_id), timeout=CONNECT_TIMEOUT_S)
            if worker is not None:
                node_id, pid = worker
                where = NodeAffinitySchedulingStrategy(node_id, soft=False)
                ray.remote(num_cpus=0, max_retries=0)(_kill).options(scheduling_strategy=where).remote(pid)

    def close(self) -> None:
        """End Tune, a private cluster and the scratch folder."""
        self._mailbox.is_stopping.set()
        self._thread.join(_STOP_TIMEOUT_S)
        ray.kill(self._registry)
        ray.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check(self) -> None:
        """Check that Ray is alive, and count again how many packs fit. Raises ExecutorError."""
        for pid, name in self._processes.items():
            if not is_alive(pid):
                raise ExecutorError(f"Ray's {name} died\n    remedy: run the same command again; it continues")
        host, _, port = self._gcs.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise ExecutorError(f"Ray does not answer at {self._gcs}: {error}") from error
        with contextlib.suppress(InputError, ray.exceptions.RayError):
            self.slots = self._count_slots()  # nodes may join or leave
        self._next_check = time.monotonic() + _SECONDS_PER_CHECK

    def _count_slots(self) -> int:
        cpus, gpus, parallel, workers = self._needs
        has = ray.cluster_resources()
        fits = int(has.get("CPU", 0) // cpus)
        if gpus:
            # Ray never splits the GPU fraction of a pack over two GPUs.
            per_gpu = math.floor(1 / gpus + 1e-9) if gpus <= 1 else 1 / gpus
            fits = min(fits, int(has.get("GPU", 0) * per_gpu))
        if self._fewest is not None and self._fewest <= fits < workers:
            return 1
        fits //= workers
        if fits < 1:
            workers = self._fewest or workers
            needs = f"{cpus * workers} CPU" + (f" and {gpus * workers:g} GPU" if gpus else "")
            available = f"{has.get('CPU', 0):g} CPU and {has.get('GPU', 0):g} GPU"
            raise InputError(
                Problem("resources", "", f"one pack needs {needs}; Ray has {available}", "lower resources")
            )
        return min(fits, parallel) if parallel else fits

    def _run_tune(self, cpus: int, gpus: float, parallel: int | None, workers: int) -> None:
        try:
            places = workers if self._fewest is None else 1  # an elastic trial reserves the others itself
            bundle = {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}
            tuner = tune.Tuner(
                tune.with_resources(train_pack, tune.PlacementGroupFactory([bundle] * places)),
                tune_config=tune.TuneConfig(
                    search_alg=PackQueue(self._mailbox),
                    scheduler=InOrder(),
                    num_samples=-1,
                    max_concurrent_trials=parallel,  # the driver also queues the next packs
                    reuse_actors=True,
                    trial_name_creator=_trial_name,
                    trial_dirname_creator=_trial_name,
                ),
                run_config=tune.RunConfig(
                    name="sweep",
                    storage_path=f"{self._scratch}/tune",
                    verbose=0,
                    callbacks=[Forward(self._mailbox)],
                    stop=StopOnRequest(self._mailbox),
                    log_to_file=False,
                ),
            )
            tuner.fit()
        except BaseException as error:
            self._failure = error


def _trial_name(trial: Any) -> str:
    return f"pack_{trial.config['pack'].pack_id}" if "pack" in trial.config else trial.trial_id
