"""The optimizers of torch and pytorch_optimizer, one instance per member.

``optimizer: torch.optim.NAdam`` names a class by its import path. The constructor gets what its signature accepts of
lr, betas = (beta1, beta2), eps and momentum = beta1. Everything else keeps its default, including three betas or an eps
that is not one number. Schedule, clipping, weight decay and masking are done by sweep, as for every optimizer: the
library's own weight decay is set to 0.

A library handles one model at a time, so these packs train one member at a time and wait for a GPU at every step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from objectives.base import TrainingConfig
from objectives.optimizers.facts.library import LIBRARY, REMEDY, problem_with
from objectives.optimizers.native_optimizer import NativeOptimizer
from objectives.optimizers.packed_optimizer import PackedOptimizer
from objectives.optimizers.rules.rule import Numbers, States, UpdateRule
from objectives.stacking import Layout, seeded_generator

# Shapes: K members, n parameters per member.

_PURPOSE = 11  # of the random stream, among a seed's streams
_PLAIN = (bool, int, float, str, type(None))
_REHEARSED_STEPS = 2
_CALM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}


def make_optimizer(
    params_Kn: torch.Tensor,
    configs: Sequence[TrainingConfig],
    layout: Layout,
    *,
    compiled: bool,
    native: bool = False,
    seeds: Sequence[int] | None = None,
) -> PackedOptimizer:
    """Return the optimizer that ``configs`` name, for K members with the rows of ``params_Kn`` as parameters.

    A library's optimizer is never ``compiled``. ``seeds`` are for random starts and random updates. Raises ValueError,
    in one line, if a library's optimizer does not exist, is not installed or needs more than gradients.
    """
    if configs[0].can_be_stacked:
        kind = NativeOptimizer if native else PackedOptimizer
        return kind(params_Kn, configs, layout, compiled=compiled, native=native, seeds=seeds)
    return ForeignOptimizer(params_Kn, configs, layout, seeds=seeds)


class ForeignOptimizer(PackedOptimizer):
    """A ``PackedOptimizer`` whose updates and states come from a library.

    Raises ValueError, in one line, if the library's optimizer needs more than gradients or does not resume exactly from
    its saved state.
    """

    rule: ForeignRule

    def __init__(
        self,
        params_Kn: torch.Tensor,
        configs: Sequence[TrainingConfig],
        layout: Layout,
        *,
        seeds: Sequence[int] | None = None,
    ) -> None:
        """``seeds`` are for optimizers that draw random numbers."""
        super().__init__(params_Kn, configs, layout, compiled=False, seeds=seeds)
        self.rule.begin(params_Kn, self.numbers, seeds)

    def _make_rule(self) -> ForeignRule:
        return ForeignRule(self.structure, self.layout)

    def _step(
        self, loss_K: torch.Tensor, grad_Kn: torch.Tensor, held_K: torch.Tensor | None
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
        self.rule.is_held = [False] * len(loss_K) if held_K is None else held_K.tolist()
        return super()._step(loss_K, grad_Kn, held_K)

    def arrange(
        self,
        rows: torch.Tensor,
        params_Kn: torch.Tensor,
        configs: Sequence[TrainingConfig],
        seeds: Sequence[int] | None = None,
    ) -> None:
        """Rearrange like any optimizer. A continuing member keeps its library state."""
        super().arrange(rows, params_Kn, configs, seeds)
        self.rule.arrange(rows.tolist(), params_Kn, self.numbers, seeds)

    def renew(self, rows: Sequence[int], configs: Sequence[TrainingConfig]) -> None:
        """Renew numbers like any optimizer. The library reads them at its next step."""
        super().renew(rows, configs)
        for row in rows:
            self.rule.members[row].give(_values(self.numbers, row))

    def restart(self, row: int, seeds: Sequence[int]) -> None:
        """Restart a member like any optimizer, with a new instance of the library's."""
        super().restart(row, seeds)
        self.rule.restart(row, self.params_Kn, self.numbers, seeds)

    def state_dict(self) -> dict[str, Any]:
        """Return any optimizer's state, plus the library's state of each member."""
        return super().state_dict() | {"library": [member.state_dict() for member in self.rule.members]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the ``state_dict`` of an optimizer with the same members."""
        super().load_state_dict(state)
        for member, saved in zip(self.rule.members, state["library"], strict=True):
            member.load_state_dict(saved)


class ForeignRule(UpdateRule):
    """Call the library for each member in turn; moments are None."""

    def __init__(self, structure: TrainingConfig, layout: Layout) -> None:
        super().__init__(structure, layout)
        self.members: list[LibraryOptimizer] = []
        # Whether each member's state must stay unchanged at this step.
        self.is_held: list[bool] = []
        self._lrs: list[float] = []
        self._ages: list[float] = []

    def begin(self, params_Kn: torch.Tensor, numbers: Numbers, seeds: Sequence[int] | None) -> None:
        """Start new members. Raises ValueError if the library's optimizer is unusable."""
        _rehearse(self.structure.optimizer, params_Kn[0], self.layout)
        self.arrange([-1] * len(params_Kn), params_Kn, numbers, seeds)

    def arrange(
        self, rows: Sequence[int], params_Kn: torch.Tensor, numbers: Numbers, seeds: Sequence[int] | None
    ) -> None:
        """Rearrange to members that continue ``rows``, -1 for a new member."""
        before = [member.state_dict() for member in self.members]
        self.members = []
        for k, row in enumerate(rows):
            seed = seeds[k] if seeds is not None else 0
            member = LibraryOptimizer(self.structure.optimizer, params_Kn[k], self.layout, _values(numbers, k), seed)
            if row >= 0:
                member.load_state_dict(before[row])
            self.members.append(member)

    def restart(self, row: int, params_Kn: torch.Tensor, numbers: Numbers, seeds: Sequence[int]) -> None:
        """Restart the member ``row`` with its current parameters."""
        values = _values(numbers, row)
        self.members[row] = LibraryOptimizer(self.structure.optimizer, params_Kn[row], self.layout, values, seeds[row])

    def state_sizes(self) -> Mapping[str, int]:
        """Return nothing: the library keeps its own state."""
        return {}

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Keep learning rates and ages unrounded: libraries compute with numbers in double precision."""
        self._lrs, self._ages = lr_K.tolist(), age_K.tolist()
        return {}

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return what the library's step subtracts from each member's parameters."""
        update_Kn = torch.zeros_like(params_Kn)
        for k, member in enumerate(self.members):
            if not self.is_held[k]:
                update_Kn[k] = member.step(params_Kn[k], grad_Kn[k], self._lrs[k], int(self._ages[k]))
        return update_Kn


class LibraryOptimizer:
    """The optimizer ``name`` of a library for one member, on a copy of its parameters."""

    def __init__(
        self, name: str, params_n: torch.Tensor, layout: Layout, values: Mapping[str, float], seed: int
    ) -> None:
        """``values`` are lr, beta1, beta2 and eps; ``seed`` is for the library's random numbers."""
        self._pieces = [part for piece in layout.pieces for part in piece.matrices()]
        self._seed, self._size = seed, layout.size
        self._params = [torch.nn.Parameter(weight.clone()) for weight in self._weights(params_n)]
        module, _, class_name = name.rpartition(".")
        self._class = getattr(importlib.import_module(module), class_name)
        self._given = _arguments(self._class, values)
        with self._randomness(0):
            self._optimizer: torch.optim.Optimizer = self._class(self._groups(), **self._given)

    def give(self, values: Mapping[str, float]) -> None:
        """Change lr, beta1, beta2 and eps during training, as a user would in ``param_groups``."""
        self._given = _arguments(self._class, values)
        self._write_given()

    def _groups(self) -> list[Any]:
        """Return the parameters; for a relative of Muon, which asks for it, in groups of matrices and of the others."""
        if "use_muon" not in _source(self._class):
            return self._params
        of_muon = [piece.is_hidden_matrix for piece in self._pieces]
        groups = [[p for p, own in zip(self._params, of_muon, strict=True) if own == kind] for kind in (True, False)]
        return [{"params": group, "use_muon": kind} for group, kind in zip(groups, (True, False), strict=True) if group]

    def _write_given(self) -> None:
        for group in self._optimizer.param_groups:
            group.update({name: value for name, value in self._given.items() if name in group})

    def step(self, params_n: torch.Tensor, grad_n: torch.Tensor, lr: float, age: int) -> torch.Tensor:
        """Return what to subtract from ``params_n`` at the member's update number ``age``, (n,).

        All NaN if the library raises an error that a diverging member causes.
        """
        weights = self._weights(params_n)
        with torch.no_grad():
            for parameter, weight in zip(self._params, weights, strict=True):
                parameter.copy_(weight)
        for parameter, grad in zip(self._params, self._weights(grad_n), strict=True):
            parameter.grad = grad.clone()
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        try:
            with self._randomness(age):
                self._optimizer.step()
        except (RuntimeError, OverflowError) as error:
            if not _is_numeric(error):
                raise
            return torch.full_like(params_n, torch.nan)
        moved = [weight - parameter.detach() for weight, parameter in zip(weights, self._params, strict=True)]
        return torch.nn.functional.pad(torch.cat([weight.flatten() for weight in moved]), (0, self._filling))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the library's state: tensors, numbers and strings, also in nested lists and dictionaries.

        Raises ValueError for anything else.
        """
        return _plain_copy(self._optimizer.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict``, with the hyperparameters that this member was created with."""
        state = _plain_copy(state)
        self._optimizer.load_state_dict(_plain_copy(state))
        # Libraries change types when they load a state.
        states, groups = self._optimizer.state, self._optimizer.param_groups
        for number, parameter in enumerate(parameter for group in groups for parameter in group["params"]):
            if number in state["state"]:
                states[parameter] = _as_saved(states[parameter], state["state"][number])
        self._write_given()

    @property
    def _filling(self) -> int:
        return self._size - self._pieces[-1].end

    def _weights(self, value_n: torch.Tensor) -> list[torch.Tensor]:
        return [value_n[piece.start : piece.end].view(piece.shape) for piece in self._pieces]

    @contextlib.contextmanager
    def _randomness(self, age: int) -> Iterator[None]:
        """Make random draws a function of seed and age, whatever else draws in this process."""
        device = self._params[0].device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seeded_generator(self._seed, _PURPOSE, age).initial_seed())
            yield


def _source(optimizer_class: type) -> str:
    """Return the source of a class, or "" for one that is made at run time."""
    try:
        return inspect.getsource(optimizer_class)
    except OSError:
        return ""


def _values(numbers: Numbers, k: int) -> dict[str, float]:
    """Return the hyperparameters of member k."""
    return {name: float(numbers[name][k]) for name in ("lr", *LIBRARY.numbers)}


def _arguments(optimizer_class: type, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the arguments that the constructor accepts: those whose defaults are numbers of the same kind."""
    numbers = {
        "lr": values["lr"],
        "beta1": values["beta1"],
        "beta2": values["beta2"],
        "eps": values["eps"],
        "momentum": values["beta1"],
        "weight_decay": 0.0,
    }
    defaults = {name: argument.default for name, argument in inspect.signature(optimizer_class).parameters.items()}
    taken: dict[str, Any] = {
        name: value
        for name, value in numbers.items()
        if isinstance(defaults.get(name), (int, float)) or defaults.get(name) is inspect.Parameter.empty
    }
    if isinstance(defaults.get("betas"), tuple) and len(defaults["betas"]) == 2:
        taken["betas"] = (values["beta1"], values["beta2"])
    return taken


@functools.cache
def rehearsal_problem(name: str) -> str | None:
    """Return what goes wrong with the library's optimizer ``name`` on a table, a matrix and a vector, or None."""
    layout = Layout({"table": (16, 8), "matrix": (8, 24), "vector": (8,)}, {"table": "embedding"})
    try:
        _rehearse(name, torch.zeros(layout.size), layout)
    except ValueError as error:
        return str(error)
    return None


def _rehearse(name: str, params_n: torch.Tensor, layout: Layout) -> None:
    """Take a few steps on made-up gradients, stop and resume. Raises ValueError with what goes wrong."""
    if problem := problem_with(name):
        raise ValueError(f"{problem[0]}; {problem[1]}")
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(params_n.shape, generator=generator).to(params_n) for _ in range(2 * _REHEARSED_STEPS)]

    def make() -> LibraryOptimizer:
        return LibraryOptimizer(name, params_n, layout, _CALM, seed=0)

    def steps(optimizer: LibraryOptimizer, ages: range, params_n: torch.Tensor) -> torch.Tensor:
        for age in ages:
            params_n = params_n - optimizer.step(params_n, grads[age], _CALM["lr"], age + 1)
        return params_n

    try:
        straight = make()
        params_n = steps(straight, range(_REHEARSED_STEPS), params_n)
        resumed = make()
        resumed.load_state_dict(straight.state_dict())
        later = range(_REHEARSED_STEPS, 2 * _REHEARSED_STEPS)
        is_exact = torch.equal(steps(straight, later, params_n), steps(resumed, later, params_n))
    except Exception as error:  # a library may raise anything
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{name} cannot be used here: {cause}; {REMEDY}") from error
    if not is_exact:
        raise ValueError(f"{name} does not resume exactly from its saved state; {REMEDY}")


def _plain_copy(value: Any) -> Any:
    """Return a deep copy of what a checkpoint can hold. Raises ValueError for anything else."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _plain_copy(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain_copy(inner) for inner in value)
    if type(value) not in _PLAIN:
        raise ValueError(f"it keeps a {type(value).__name__}, which a checkpoint cannot hold")
    return value


def _is_numeric(error: Exception) -> bool:
    """Return whether ``error`` comes from numbers too large for their type or from a non-finite matrix."""
    return isinstance(error, (OverflowError, torch.linalg.LinAlgError)) or "without overflow" in str(error)


def _as_saved(loaded: Any, saved: Any) -> Any:
    """Return the saved state, with tensors in their saved type, on the device that the library uses."""
    if isinstance(loaded, torch.Tensor) and isinstance(saved, torch.Tensor):
        return saved.to(loaded.device)
    if isinstance(loaded, Mapping) and isinstance(saved, Mapping):
        return {key: _as_saved(loaded.get(key), inner) for key, inner in saved.items()}
    if isinstance(saved, (list, tuple)) and isinstance(loaded, (list, tuple)) and len(saved) == len(loaded):
        return type(saved)(_as_saved(mine, inner) for mine, inner in zip(loaded, saved, strict=True))
    return saved
