"""The keys of a sweep file, section by section, with their types, domains and defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from orchestrator.base.errors import did_you_mean
from orchestrator.base.vocabulary import TRACKERS
from orchestrator.detection.config import SlowConfig, StoppingConfig
from orchestrator.logs.columns import MetricsConfig, ScoreConfig
from orchestrator.search.by_optuna import METHODS, SEARCHES
from orchestrator.sweepfile.running import (
    BudgetConfig,
    CheckpointConfig,
    KeepConfig,
    Section,
    TelemetryConfig,
    ValidateConfig,
)

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"
EVENTS = ("finished", "failed", "stalled", "diverged")  # of a run, for `notify.on`
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_STEPS = 10_000_000
_REFERENCE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


def _as_text(value: Any, where: str) -> Any:
    """Read a word of a command as it was meant: numbers are text, and YAML takes an unquoted {lr} for a mapping."""
    if isinstance(value, Mapping) and len(value) == 1 and list(value.values()) == [None]:
        return f"{{{next(iter(value))}}}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if value is None or isinstance(value, bool):
        raise PydanticCustomError("quote", "{value} in {where} may be a word or not: quote it", {
            "value": "none (null)" if value is None else str(value).lower(), "where": where,
        })  # fmt: skip
    return value


def _as_words(command: Any) -> Any:
    """Read a command as a list; a string is split as in a shell."""
    if isinstance(command, str):
        try:
            return shlex.split(command)
        except ValueError as error:
            raise PydanticCustomError("words", "cannot be split into words: {why}", {"why": str(error)}) from None
    return [_as_text(word, "a command") for word in command] if isinstance(command, list) else command


def _as_texts(values: Any) -> Any:
    if isinstance(values, list):
        return [_as_text(value, "arguments") for value in values]
    if isinstance(values, Mapping):
        return {name: _as_text(value, "environment") for name, value in values.items()}
    return values


def _module_names(preload: Any) -> Any:
    if preload in (None, "auto", False):
        return preload
    for name in preload if isinstance(preload, list) else [preload]:
        if not isinstance(preload, list) or not isinstance(name, str):
            raise PydanticCustomError("modules", "Input should be auto, false or a list of names of modules")
        if not all(part.isidentifier() for part in name.split(".")):
            raise PydanticCustomError("module", "{name} is not the name of a module", {"name": repr(name)})
    return preload


class ResumeConfig(Section):
    """How a custom trainer resumes from its own checkpoint."""

    checkpoint: str = Field(
        min_length=1,
        description="checkpoint, may be a glob (the newest counts); an interrupted trial without one restarts",
    )
    arguments: Annotated[list[str], BeforeValidator(_as_texts)] = Field(
        [], description="arguments added to the command if it exists; {checkpoint} is its path"
    )


class CustomTrainerSection(Section):
    """A custom trainer in place of a built-in objective; exactly one of command, python and packed is given."""

    command: Annotated[list[str] | None, BeforeValidator(_as_words)] = Field(
        None, min_length=1, description="program and arguments, as a list or one string; {lr} is the trial's lr"
    )
    python: str | None = Field(None, pattern=_REFERENCE, description="a function run(config, report), module:name")
    packed: str | None = Field(None, pattern=_REFERENCE, description="a custom packed objective, module:name")
    folder: str = Field(".", min_length=1, description="working directory, also of modules; from the file's folder")
    environment: Annotated[dict[str, str], BeforeValidator(_as_texts)] = Field(
        {}, description="variables added to the environment; {lr} as in command"
    )
    preload: Annotated[Literal["auto", False] | list[str] | None, BeforeValidator(_module_names)] = Field(
        None,
        description="modules imported once: trials are forks of that process; auto: installed ones that the script "
        "imports; false: none. By default auto for python, false for command",
    )
    metrics: MetricsConfig = Field(MetricsConfig(), description="where a command reports its losses")
    resume: ResumeConfig | None = Field(None, description="null restarts an interrupted trial")
    diverged_if: str | None = Field(None, min_length=1, description="a pattern: it diverged if its last lines have it")
    grace_s: float = Field(
        10.0, gt=0, le=3600, description="seconds between SIGTERM and SIGKILL for a run that is lost or stopped"
    )


class AxisSection(Section):
    """One axis as written: a list of values, or a range with a scale."""

    values: list[Any] | None = Field(None, min_length=1)
    linear: list[float] | None = Field(None, min_length=2, max_length=2)
    log: list[float] | None = Field(None, min_length=2, max_length=2)
    log1m: list[float] | None = Field(None, min_length=2, max_length=2)
    num: int | None = Field(None, ge=1, le=100_000)
    when: dict[str, Any] | None = Field(
        None, min_length=1, description="values of other axes that this axis needs to exist; else it is null"
    )


def _one_of(names: Iterable[str]) -> AfterValidator:
    """Return a check that accepts only ``names``, and lists them otherwise."""

    def check(name: str) -> str:
        if name not in names:
            *some, last = map(repr, names)
            known = f"{', '.join(some)} or {last}" if some else last
            raise PydanticCustomError("unknown_name", "Input should be {known}", {"known": known})
        return name

    return AfterValidator(check)


def _each_once(names: list[str]) -> list[str]:
    if twice := {name for name in names if names.count(name) > 1}:
        raise PydanticCustomError("twice", "{name} is listed twice", {"name": repr(min(twice))})
    return names


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SeedsSection(Section):
    """Seeds added where a grid needs them, in place of a list of seeds; they are 0, 1, 2 and so on."""

    start: int = Field(ge=1, le=10_000, description="seeds of every cell")
    up_to: int = Field(ge=2, le=10_000, description="seeds of a cell at most")
    where: Literal["disagreement"] = Field(
        description="where the seeds of a cell disagree about stability, or neighbours do"
    )


class SearchSection(Section):
    """A search in place of a grid: it chooses cells while results come in."""

    method: Annotated[str, _one_of(SEARCHES)] = Field(
        description="edge finds the edge of stability; tpe, gp, cmaes and nsga2 are Optuna's samplers, for a low "
        "metric; random and qmc learn nothing"
    )
    trials: int = Field(ge=1, le=1_000_000, description="trained at most, all seeds counted")
    seed: int = Field(0, ge=0, lt=2**32, description="of the search's own choices")
    batch: int | None = Field(
        None, ge=1, description="trials that are proposed together, when all before have a result: then what is tried "
        "does not depend on timing; null: whenever workers have room"
    )  # fmt: skip
    along: str | None = Field(
        None, description="edge, and the metric margin: the axis along which the edge is sought; null for the first"
    )
    precision: float | None = Field(
        None, gt=1, description="edge: end when the edge is known within this factor everywhere"
    )
    level: float | None = Field(None, gt=0, lt=1, description="edge: the share of stable seeds on it, 0.5 by default")
    refines: int | None = Field(
        None,
        ge=0,
        description="edge: the trials that `sweep run --refine` began with; cells between the axes' numbers are tried, "
        "too; null: only an axis without num is a range",
    )
    metric: Annotated[list[str] | None, BeforeValidator(_as_list)] = Field(
        None,
        min_length=1,
        description="what Optuna's samplers minimise, one or several names; margin, the distance to the edge, "
        "learned_share and a score with maximize are maximised; null for the score, or else final_loss",
    )
    stable: float | None = Field(
        None, gt=0, le=1, description="tpe, gp, nsga2: the share of a cell's seeds that must be stable"
    )


class BatchSection(Section):
    """The global batch of a custom trainer: micro batch x accumulation x workers."""

    global_: int | None = Field(None, ge=1, alias="global", description="examples of one step of all workers")
    micro: int | None = Field(None, ge=1, description="examples that a worker passes through the model at a time")
    accumulation: int | None = Field(None, ge=1, description="micro batches of a worker in one step")
    workers: int | None = Field(None, ge=1, description="that share the global batch; null for resources.workers")


class SampleSection(Section):
    """Sampled cells in place of a grid."""

    method: Annotated[str, _one_of(METHODS)]
    num: int = Field(ge=1, le=1_000_000)
    seed: int = Field(0, ge=0)


class WorkersSection(Section):
    """How many processes a trial may have, in place of one number: each restart takes as many as find a place."""

    min: int = Field(ge=1, le=4096, description="processes of a trial at least")
    max: int = Field(ge=2, le=4096, description="processes of a trial at most")


class ResourcesConfig(Section):
    """The resources of a pack, and how many packs run at a time."""

    cpus: int = Field(1, ge=1, description="CPU cores, and torch threads, of one pack")
    gpus: float = Field(0.0, ge=0, description="GPUs of one pack; a fraction shares one")
    pack: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="members trained at a time by one worker; auto measures what is fastest"
    )
    compile: bool = Field(
        False, description="train compiled packs, which round differently; frozen when the sweep first runs"
    )
    kernels: Literal["auto", "default"] = Field("auto", description="auto: own C++ code, if any; default: torch's")
    parallel: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="packs trained at a time; auto: as many as fit"
    )
    workers: Annotated[
        Annotated[int, Field(ge=1, le=4096), Tag("workers-number")] | Annotated[WorkersSection, Tag("workers-range")],
        Discriminator(lambda value: "workers-range" if isinstance(value, dict | WorkersSection) else "workers-number"),
    ] = Field(1, description="processes of one trial, of a custom trainer or `gpt`; {min, max} of an elastic one")
    gpus_per_worker: float = Field(0.0, ge=0, description="GPUs of each of these processes, which get cpus each")
    grams_per_kwh: float | None = Field(None, ge=0, description="grams of CO2 of the electricity; null: not known")
    stall_timeout_s: float = Field(
        600.0, gt=0, description="seconds without a heartbeat after which a worker counts as hung and is killed"
    )

    @property
    def is_elastic(self) -> bool:
        """Whether the number of processes of a trial may change."""
        return isinstance(self.workers, WorkersSection)

    @property
    def most_workers(self) -> int:
        """Processes of one trial at most."""
        return self.workers.max if isinstance(self.workers, WorkersSection) else self.workers

    @property
    def fewest_workers(self) -> int:
        """Processes of one trial at least."""
        return self.workers.min if isinstance(self.workers, WorkersSection) else self.workers

    @property
    def workers_text(self) -> str:
        """Processes of one trial, in words."""
        return f"{self.fewest_workers} to {self.most_workers}" if self.is_elastic else f"{self.most_workers}"


class TrackingConfig(Section):
    """The trackers that mirror the ledger."""

    enabled: bool = Field(True, description="mirror the ledger")
    to: Annotated[list[Annotated[str, _one_of(TRACKERS)]], AfterValidator(_each_once)] = Field(
        ["mlflow"], min_length=1, description="the trackers: any of mlflow, tensorboard and wandb"
    )
    uri: str | None = Field(None, description="MLflow tracking URI; null for mlflow.db next to the results folders")
    experiment: str = Field(
        "sweep", min_length=1, max_length=250, description="MLflow experiment, and project of Weights & Biases"
    )
    every: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="log every n-th step; auto for at most about 200 points a curve, every peak among them"
    )


def _variable_name(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise PydanticCustomError("variable", "is not the name of an environment variable")
    return name


class NotifyConfig(Section):
    """Messages about a run: the receiver, and the events that send one."""

    url_from: Annotated[str, AfterValidator(_variable_name)] = Field(
        description="name of the environment variable that holds the URL for Apprise"
    )
    on: Annotated[list[Annotated[str, _one_of(EVENTS)]], AfterValidator(_each_once)] = Field(
        [*EVENTS], min_length=1, description="any of finished, failed, stalled and diverged"
    )


class SweepFile(Section):
    """The keys of a sweep file."""

    name: str = Field(pattern=NAME_PATTERN)
    objective: Annotated[
        Annotated[str, Tag("objective-name")] | Annotated[CustomTrainerSection, Tag("custom-trainer")],
        Discriminator(lambda value: "objective-name" if isinstance(value, str) else "custom-trainer"),
    ]
    steps: int | None = Field(None, ge=1, le=MAX_STEPS, description="of every trial; one of steps and tokens is given")
    tokens: float | None = Field(
        None,
        ge=1,
        le=1e15,
        description="of every trial, in place of steps, to the nearest step of batch_size x context tokens",
    )
    seeds: Annotated[
        Annotated[list[int], Field(min_length=1, max_length=10_000), Tag("listed-seeds")]
        | Annotated[SeedsSection, Tag("added-seeds")],
        Discriminator(lambda value: "added-seeds" if isinstance(value, dict | SeedsSection) else "listed-seeds"),
    ] = Field(default=[0])
    axes: dict[str, AxisSection] = Field(default={})
    fixed: dict[str, Any] = Field(default={})
    interventions: list[Any] | None = Field(None, description="changes in mid-run, of all trials")
    control: list[Any] | None = Field(None, description="rules that change trials while they train, of all trials")
    tie: dict[str, Any] = Field(default={})
    facts: dict[str, bool | int | float | str] = Field({}, description="settings that the command of a trainer keeps")
    batch: BatchSection | None = None
    zip: list[Annotated[list[str], Field(min_length=2), AfterValidator(_each_once)]] = Field(default=[])
    sample: SampleSection | None = None
    search: SearchSection | None = None
    budget: BudgetConfig = BudgetConfig()
    stopping: StoppingConfig = StoppingConfig()
    resources: ResourcesConfig = ResourcesConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    keep: KeepConfig | None = None
    validation: ValidateConfig = Field(ValidateConfig(), alias="validate")  # pydantic's models have a `validate`
    telemetry: TelemetryConfig = TelemetryConfig()
    tracking: TrackingConfig = TrackingConfig()
    notify: NotifyConfig | None = None
    max_trials: int = Field(10_000, ge=1, le=1_000_000)

    @property
    def all_seeds(self) -> list[int]:
        """All seeds that a cell may have, in order."""
        return list(range(self.seeds.up_to)) if isinstance(self.seeds, SeedsSection) else self.seeds


def keys_of(section: type[BaseModel]) -> list[str]:
    """Return the keys of a section as they are written in a file."""
    return [field.alias or name for name, field in section.model_fields.items()]


SECTIONS: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): SweepFile,
    ("objective",): CustomTrainerSection,
    ("objective", "metrics"): MetricsConfig,
    ("objective", "metrics", "score"): ScoreConfig,
    ("objective", "resume"): ResumeConfig,
    ("axes", "*"): AxisSection,
    ("seeds",): SeedsSection,
    ("batch",): BatchSection,
    ("sample",): SampleSection,
    ("search",): SearchSection,
    ("budget",): BudgetConfig,
    ("stopping",): StoppingConfig,
    ("stopping", "slow"): SlowConfig,
    ("resources",): ResourcesConfig,
    ("resources", "workers"): WorkersSection,
    ("checkpoint",): CheckpointConfig,
    ("keep",): KeepConfig,
    ("validate",): ValidateConfig,
    ("telemetry",): TelemetryConfig,
    ("tracking",): TrackingConfig,
    ("notify",): NotifyConfig,
}


def remedy_for_unknown(path: Sequence[str | int], known: Sequence[str]) -> str:
    """Return where the unknown key at the end of ``path`` belongs, or the key that was meant, or the ``known`` ones."""
    name = str(path[-1])
    homes = [section for section, model in SECTIONS.items() if "*" not in section and name in keys_of(model)]
    if () in homes and path[0] != "axes":
        return f"write {name}: at the left margin, next to {path[0]}:"
    meant = did_you_mean(name, known)
    if not meant and len(homes) == 1 and path[0] != "axes":
        return f"write it under {'.'.join(homes[0])}:"
    return meant or f"known keys: {', '.join(known)}"
