"""A checked sweep, from a sweep file; every error names file, line, key, offending value and remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from objectives.base import OBJECTIVES, Objective, Rounding, load_objective
from orchestrator.base.environment import clash_remedy
from orchestrator.base.errors import InputError, Problem, did_you_mean
from orchestrator.base.files import has_password
from orchestrator.base.space import Axis, Trial, to_hashable, to_plain
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.config import StoppingConfig
from orchestrator.search.protocol import Search
from orchestrator.sweepfile.axes import check_num_trials, checked_axes, with_relations
from orchestrator.sweepfile.custom_trainer import (
    CustomTrainer,
    absolute_folder,
    batch_problems,
    custom_trainer,
    with_batch,
)
from orchestrator.sweepfile.entries import ENTRY_FIELDS, misplaced, path_of_fixed, with_entries
from orchestrator.sweepfile.fields import Fields, field_problem, lowered, shown
from orchestrator.sweepfile.objective_fields import CustomFields, ObjectiveFields, absolute_text
from orchestrator.sweepfile.overrides import Overrides, apply
from orchestrator.sweepfile.running import BudgetConfig, CheckpointConfig, KeepConfig, TelemetryConfig, ValidateConfig
from orchestrator.sweepfile.searches import (
    added_seeds,
    corner_cells,
    first_trials,
    listed_cells,
    max_concurrent,
    num_initial,
    search_of,
)
from orchestrator.sweepfile.sections import (
    EVENTS,
    SECTIONS,
    NotifyConfig,
    ResourcesConfig,
    SeedsSection,
    SweepFile,
    TrackingConfig,
    keys_of,
    remedy_for_unknown,
)
from orchestrator.sweepfile.steps import (
    Length,
    common_length,
    length_problems,
    missing_length,
    names_read_by_sweep,
    needs_steps,
)
from orchestrator.sweepfile.strict_yaml import MAX_PROBLEMS, Document, dotted, read_document, text_of
from orchestrator.sweepfile.ties import checked_ties, ties_of_steps
from orchestrator.sweepfile.trainer_problems import trainer_problems, with_one_member
from orchestrator.sweepfile.trials import TrialMaker, resolved_trials

# Parts of pydantic's error paths that name a member of a union, and are not keys of a sweep file.
_BRANCHES = (
    "literal['auto']", "constrained-int", "int", "objective-name", "custom-trainer", "listed-seeds", "added-seeds",
    "workers-number", "workers-range")  # fmt: skip


class ImportNotAllowed(InputError):
    """A sweep file names code to import, and the command line does not allow it."""

    def __init__(self, where: str, kind: str, reference: str) -> None:
        message = f"{reference!r} is your code, which runs when it is imported"
        super().__init__(Problem(where, f"objective.{kind}", message, "say --allow-import if you trust it"))


@dataclass(frozen=True, slots=True)
class Sweep:
    """A checked sweep: everything that `run` needs to know."""

    name: str
    objective: Objective | CustomTrainer
    steps: int  # of the longest trial
    tokens: float | None  # of every trial, if they are given in place of steps
    seeds: tuple[int, ...]
    axes: tuple[Axis, ...]
    fixed: Mapping[str, Any]
    facts: Mapping[str, Any]  # settings that a custom trainer keeps by itself
    is_grid: bool  # not sampled or chosen by a search
    edge_axis: str | None  # along which a search looks for the edge
    num_initial: int | None  # first cells of a search for an edge, which no result has placed
    search: Search
    max_trials: int | None  # that the search may propose; None if all trials are known from the start
    max_concurrent: int | None  # trials that the search would run at a time; None for as many as there is room
    trials: tuple[Trial, ...]  # proposed while nothing is known: all of a grid
    maker: TrialMaker = field(repr=False)
    stopping: StoppingConfig
    resources: ResourcesConfig
    checkpoint: CheckpointConfig
    keep: KeepConfig | None
    validation: ValidateConfig
    telemetry: TelemetryConfig
    budget: BudgetConfig
    tracking: TrackingConfig
    text: str  # this sweep as a sweep file, with the command line's changes
    idle: Mapping[str, int]  # number of cells in which an axis has no effect
    notify: NotifyConfig | None
    notify_place: str  # where notify was written
    roundings: Mapping[str, Rounding]  # of results, by structure; of "" for all that are not listed

    @property
    def rules(self) -> dict[str, Any]:
        """The part of every trial's identity besides its configuration and its seed."""
        return rules_of(self.stopping, self.validation)

    @property
    def receiver(self) -> str:
        """The environment variable with the URL that receives messages, or ""."""
        return "" if self.notify is None else self.notify.url_from

    @property
    def is_open(self) -> bool:
        """Whether trials are proposed while results come in."""
        return self.max_trials is not None

    def trial_like(self, row: TrialResult) -> Trial | None:
        """Return the trial of a ledger row if it belongs to this sweep (same settings, values on the axes), or None."""
        if list(row.cell) != self.axis_names or row.seed not in self.seeds:
            return None
        if not all(axis.has(row.cell[axis.name]) for axis in self.axes):
            return None
        try:
            made = self.maker.trials(row.cell)
        except ValueError:
            return None
        return next((trial for trial in made if trial.trial_id == row.trial_id), None)

    @property
    def axis_names(self) -> list[str]:
        """The names of the axes, in order."""
        return [axis.name for axis in self.axes]


def rules_of(stopping: StoppingConfig, validation: ValidateConfig) -> dict[str, Any]:
    """Return the rules that end trials of a sweep; the validation interval is included only if it may end them."""
    every = {} if stopping.validation_patience is None else {"validate_every": validation.every}
    return stopping.rules() | every


def load_sweep(path: Path, overrides: Overrides = Overrides(), *, allow_import: bool = False) -> Sweep:
    """Read and check the sweep file at ``path``. Raises InputError with all problems found.

    Only with ``allow_import`` is a custom packed objective imported, which runs its code.
    """
    return build_sweep(read_document(path), overrides, allow_import=allow_import)


def check_import(sweep: Sweep, allow_import: bool) -> None:
    """Raise ImportNotAllowed if trials would import a user's function without ``allow_import``."""
    if isinstance(sweep.objective, CustomTrainer) and sweep.objective.section.python is not None and not allow_import:
        raise ImportNotAllowed(sweep.objective.file, "python", sweep.objective.section.python)


def load_sections(path: Path, overrides: Overrides = Overrides()) -> SweepFile:
    """Return the sections of the sweep file at ``path`` as written, without importing anything."""
    document = read_document(path)
    apply(overrides, document)
    return _validated(document)


def build_sweep(document: Document, overrides: Overrides = Overrides(), *, allow_import: bool = False) -> Sweep:
    """Check ``document`` with the command line's changes, and generate its trials. Raises InputError."""
    apply(overrides, document)
    file = _validated(document)
    objective = _objective(file, document, allow_import)
    problems = list(batch_problems(file, isinstance(objective, CustomTrainer), document))
    problems += misplaced(file, is_custom=isinstance(objective, CustomTrainer), document=document)
    if not problems:
        file = with_entries(with_batch(file))
        problems += trainer_problems(file, objective, document)
        file = with_one_member(file, objective)
    if problems:
        raise InputError(*problems[:MAX_PROBLEMS])
    fields: Fields
    if isinstance(objective, CustomTrainer):
        fields = CustomFields(objective, names_read_by_sweep(file))
    else:
        fields = ObjectiveFields(objective, file.resources)
    fixed = _checked_fixed(file, fields, document, problems)
    axes = checked_axes(file, fields, document, problems)
    ties = checked_ties(file, fields, document, problems)
    late = ties_of_steps(ties, [name for name, value in fixed.items() if needs_steps(value)])
    problems += length_problems(file, objective, late, document)
    if not problems:
        axes = with_relations(axes, file, fields, document, problems)
    if problems:
        raise InputError(*problems[:MAX_PROBLEMS])
    check_num_trials(file, axes, document)
    stopping = file.stopping.resolved(objective.spike_rise, objective.gradient_patience)
    conditional = frozenset(axis.name for axis in axes if axis.when)
    rules = rules_of(stopping, file.validation)
    length = Length(file.steps, file.tokens)
    if not length.varies_with({*file.axes, *file.tie}):
        length, axes = common_length(length, axes, fixed, fields, document)
    maker = TrialMaker(objective.name, length, file.all_seeds, fields, fixed, ties, conditional, rules)
    search: Search
    max_trials = concurrent = initial = None
    if file.search is not None:
        search, max_trials = search_of(file, axes, document), file.search.trials
        concurrent, initial = max_concurrent(file.search), num_initial(file.search, axes, search)
        corners, idle = resolved_trials(corner_cells(axes, ties), file, maker, document)
        trials = first_trials(search, maker)
        longest = max(trial.steps for trial in (*corners, *trials))
    else:
        search = listed = listed_cells(file, axes)
        trials, idle = resolved_trials(listed.cells, file, maker, document)
        longest = max(trial.steps for trial in trials)
        if isinstance(file.seeds, SeedsSection):
            search, max_trials = added_seeds(file, file.seeds, axes, document), len(trials)
            trials = first_trials(search, maker)
    return Sweep(
        name=file.name,
        objective=objective,
        steps=longest,
        tokens=file.tokens,
        seeds=tuple(file.all_seeds),
        axes=tuple(axes),
        fixed=fixed,
        facts=file.facts,
        is_grid=file.sample is None and file.search is None,
        edge_axis=None if file.search is None else file.search.along,
        num_initial=initial,
        search=search,
        max_trials=max_trials,
        max_concurrent=concurrent,
        trials=tuple(trials),
        maker=maker,
        stopping=stopping,
        resources=file.resources,
        checkpoint=file.checkpoint,
        keep=file.keep,
        validation=file.validation,
        telemetry=file.telemetry,
        budget=file.budget,
        tracking=file.tracking,
        text=_portable_text(document, fixed, axes, fields, objective),
        idle=idle,
        notify=file.notify,
        notify_place=document.place(("notify", "url_from")),
        roundings={"": Rounding.of_new_results(file.resources.compile, file.resources.kernels, file.resources.gpus)},
    )


# --- checks --------------------------------------------------------------------------------------


def _validated(document: Document) -> SweepFile:
    # `seeds:` without a value means the same as omitting the key.
    known = keys_of(SweepFile)
    data = {key: value for key, value in document.data.items() if value is not None or key not in known}
    problems = list(missing_length(data, document))
    try:
        file = SweepFile.model_validate(data)
    except ValidationError as error:
        problems += [_problem(details, document) for details in error.errors()[:MAX_PROBLEMS]]
        raise InputError(*dict.fromkeys(problems)) from None
    if problems:
        raise InputError(*problems)
    if has_password(file.tracking.uri or ""):
        message = "has a password, which sweep.yaml and its copies would keep"
        remedy = "leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or PGPASSWORD"
        raise InputError(document.problem(("tracking", "uri"), message, remedy))
    if len(set(seeds := file.all_seeds)) < len(seeds):
        raise InputError(document.problem(("seeds",), f"{seeds} repeats a seed", "list each once"))
    if min(seeds) < 0 or max(seeds) >= 2**53:
        raise InputError(document.problem(("seeds",), "must lie in 0 .. 2^53"))
    if file.sample is not None and file.sample.seed >= 2**32:
        raise InputError(document.problem(("sample", "seed"), "must lie in 0 .. 2^32"))
    return file


def _problem(details: Mapping[str, Any], document: Document) -> Problem:
    path = tuple(part for part in details["loc"] if part not in _BRANCHES)
    key, where = dotted(path), document.place(path)
    if path[:1] == ("notify",):
        # The value may be a URL with a password, even as a key: neither the value nor its option is repeated.
        key = "notify" if "://" in key else key
        where = f"--set {key}" if where.startswith("--set ") else where
        if path[1:2] != ("on",) or "://" in str(details["input"]):
            return _notify_problem(details["type"], where, key)

    def problem(message: str, remedy: str) -> Problem:
        return Problem(where, key, message, remedy)

    given = shown(details["input"])
    match details["type"]:
        case "extra_forbidden":
            if path[:-1] == ("objective", "metrics") and isinstance(details["input"], Mapping):
                return problem("unknown key", f"a metric is score: {{name: {path[-1]}, maximize: true}}")
            return problem("unknown key", remedy_for_unknown(path, _known_keys(path[:-1])))
        case "missing":
            return problem("is missing", f"add `{path[-1]}:` to the file")
        case "string_pattern_mismatch" if path[0] == "objective":
            return problem(f"{given} does not say where it is", "write module:name")
        case "string_pattern_mismatch":
            return problem(f"{given} is not a safe name", "use a-z, 0-9, _ and -, at most 64, no path")
    return problem(f"{given} is refused: {lowered(details['msg'])}", _remedy(path))


def _notify_problem(kind: str, where: str, key: str) -> Problem:
    """Return a problem of `notify` without repeating its value."""
    remedy = "put the URL into an environment variable, and write notify: {url_from: ITS_NAME}"
    if key.startswith("notify.on"):
        return Problem(where, key, "is not a list of events", f"choose from {', '.join(EVENTS)}")
    if kind == "extra_forbidden":
        return Problem(where, key, "unknown key", f"known keys: {', '.join(_known_keys(('notify',)))}")
    if kind == "missing":
        return Problem(where, key, "is missing", remedy)
    if key == "notify":
        return Problem(where, key, "is not a mapping of keys to values", remedy)
    return Problem(where, key, "is not the name of an environment variable", remedy)


def _known_keys(path: Sequence[str | int]) -> list[str]:
    pattern = ("axes", "*") if len(path) == 2 and path[0] == "axes" else tuple(path)
    section = SECTIONS.get(pattern)  # type: ignore[arg-type]
    return keys_of(section) if section else []


def _remedy(path: Sequence[str | int]) -> str:
    if path == ("tokens",):
        return "write their number, such as 2e6"
    if path and path[0] == "axes":
        return "an axis is {values: [...]}, or {linear|log|log1m: [low, high], num: N}"
    return f"its keys: {', '.join(known)}" if (known := _known_keys(path)) else ""


def _objective(file: SweepFile, document: Document, allow_import: bool) -> Objective | CustomTrainer:
    where, section = document.place(("objective",)), file.objective
    if isinstance(section, str):
        if section not in OBJECTIVES:
            remedy = did_you_mean(section, OBJECTIVES) or f"choose one of {', '.join(OBJECTIVES)}"
            raise InputError(Problem(where, "objective", f"{section!r} is unknown", remedy))
        return OBJECTIVES[section]
    given = [kind for kind in ("command", "python", "packed") if getattr(section, kind) is not None]
    if len(given) != 1:
        what = f"has both {' and '.join(given)}" if given else "does not say what to train"
        raise InputError(Problem(where, "objective", what, "give one of command, python, packed"))
    if section.packed is None:
        return custom_trainer(section, file, document.name)
    if not allow_import:
        raise ImportNotAllowed(where, "packed", section.packed)
    try:
        return load_objective(section.packed, absolute_folder(section, document.name))
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"{section.packed!r} cannot be loaded: {type(error).__name__}: {cause}"
        clash = isinstance(error, ImportError) and clash_remedy(error)
        remedy = clash or "modules are found in objective.folder"
        raise InputError(Problem(where, "objective.packed", message, remedy)) from None


def _checked_fixed(file: SweepFile, fields: Fields, document: Document, problems: list[Problem]) -> dict[str, Any]:
    fixed = {}
    for name, value in file.fixed.items():
        if len(problems) >= MAX_PROBLEMS:
            break
        path = path_of_fixed(file, name)
        if problem := field_problem(fields, name, value, path, document):
            problems.append(problem)
        elif name in file.axes:
            problems.append(Problem(document.place(path), f"fixed.{name}", "is also an axis", "keep one of the two"))
        elif fields.names_files(name):
            fixed[name] = absolute_text(value, document.place(path), f"fixed.{name}", problems)
        else:
            fixed[name] = fields.canonical(name, value) if name in ENTRY_FIELDS else to_hashable(value)
    return fixed


def _portable_text(
    document: Document,
    fixed: Mapping[str, Any],
    axes: Sequence[Axis],
    fields: Fields,
    objective: Objective | CustomTrainer,
) -> str:
    """Write the sweep as a file for any folder: first comment and keys, with the command line's changes."""
    data = {key: document.data[key] for key in keys_of(SweepFile) if key in document.data}
    if isinstance(data["objective"], dict):
        data["objective"] = {**data["objective"], "folder": objective.folder}
    for axis in axes:
        if fields.names_files(axis.name):
            written = {**data["axes"][axis.name], "values": to_plain(axis.values)}
            data["axes"] = {**data["axes"], axis.name: written}
    if data.get("fixed"):
        data["fixed"] = {key: to_plain(fixed[key]) for key in data["fixed"]}
    return document.comment + text_of(data)
