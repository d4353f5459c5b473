"""Whether the texts of a sweep have as many documents as its fields need."""

from __future__ import annotations

from collections.abc import Iterator

from objectives.models.facts.feed import FeedFields
from objectives.models.facts.text import RECIPE_FIELDS, Recipe, TextConfig
from objectives.models.files import problem_with_documents
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import to_hashable
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.spec import Sweep

_TEXTS = ("text", "shift_text", "mix_text", "domains")


def texts_of(sweep: Sweep) -> list[tuple[tuple[str, ...], Recipe]]:
    """Return the different texts of the trials, with their recipes; none for an objective without a text."""
    objective = sweep.objective
    if isinstance(objective, CustomTrainer) or not issubclass(objective.config_class, TextConfig):
        return []
    # Trials that differ in other fields share their texts, and a configuration takes time.
    trials = {
        tuple(to_hashable(trial.config.get(name)) for name in (*_TEXTS, *RECIPE_FIELDS)): trial
        for trial in sweep.trials
    }
    configs = [objective.config_of(trial.config) for trial in trials.values()]
    return list(
        dict.fromkeys(found for config in configs if isinstance(config, TextConfig) for found in _texts(config))
    )


def _texts(config: TextConfig) -> Iterator[tuple[tuple[str, ...], Recipe]]:
    domains = config.domain_texts if isinstance(config, FeedFields) else ()
    yield from ((text, config.recipe) for text in domains or (tuple(getattr(config, "text", ())),))
    for name in ("shift_text", "mix_text"):  # empty unless they act
        if more := getattr(config, name, ()):
            yield tuple(more), config.recipe


def check_documents(sweep: Sweep) -> None:
    """Raise InputError if a text has fewer documents than dirt, copies, filters or a curriculum need."""
    for text, recipe in texts_of(sweep):
        if recipe.is_plain:
            continue
        try:
            problem = problem_with_documents(text, recipe.separator)
        except ValueError as error:
            raise InputError(Problem(f"sweep {sweep.name}", "", str(error), "repair it, or name others")) from None
        if problem is not None:
            remedy = 'set separator, such as "\\n\\n" for paragraphs, or name more files'
            raise InputError(Problem(f"sweep {sweep.name}", "", problem, remedy))
