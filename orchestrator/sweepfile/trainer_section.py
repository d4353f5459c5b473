"""The section ``objective`` of a sweep file when it describes a custom trainer, and the base of all sections."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from orchestrator.logs.columns import MetricsConfig

_REFERENCE = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


class Section(BaseModel):
    """Keys of a sweep file, with their types, domains and defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


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
    grace_s: float = Field(
        10.0, gt=0, le=3600, description="seconds between SIGTERM and SIGKILL for a run that is lost or stopped"
    )
