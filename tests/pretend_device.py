"""A pretended accelerator: tensors that say they are elsewhere and compute on the CPU, and what waits for them.

Code that runs on it takes the paths that it takes on a GPU, and each operation that would make the host wait there, or
send it data, is noted with its place in `objectives/`. The device is called "meta", which every build of torch knows.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

DEVICE = "meta"
# Operations whose result's shape, or whose value in Python, depends on numbers on the device.
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount", "_unique2"}
_PINNED = "is_pretended_pinned"
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class DeviceTensor(torch.Tensor):
    """A tensor of the pretended device, whose numbers are in ``inner``, a tensor of the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> DeviceTensor:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **layout, dtype=inner.dtype, device=DEVICE)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _computed(Counter(), func, args, kwargs or {})


class Notes(TorchDispatchMode):
    """Counts of what would make the host wait for the device or send it data: "what, file:line"."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return _computed(self.counts, func, args, kwargs or {})

    def take(self) -> dict[str, int]:
        """What has been counted since the last time."""
        counts, self.counts = self.counts, Counter()
        return dict(counts)


class _Factories(TorchFunctionMode):
    """torch makes tensors of lists, and pins memory, below the level of operations."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.pin_memory:
            setattr(pinned := args[0].clone(), _PINNED, True)
            return pinned
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == DEVICE:
            del kwargs["device"]
            return _sent_list(self.notes, torch.tensor(*args, **kwargs))
        if func is torch.Tensor.new_tensor and isinstance(args[0], DeviceTensor):
            return _sent_list(self.notes, torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}))
        if func is torch.Tensor.tolist and isinstance(args[0], DeviceTensor):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


@contextmanager
def pretended_device() -> Iterator[Notes]:
    """Pretend that there is a device ``DEVICE``."""
    notes = Notes()
    with _Factories(notes), notes:
        yield notes


def on_host(value: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor of the device, without a note."""
    assert isinstance(value, DeviceTensor)
    return value.inner


def _sent_list(notes: Notes, value: torch.Tensor) -> torch.Tensor:
    notes.counts[f"a list is sent, {_place()}"] += 1
    return DeviceTensor(value)


def _computed(counts: Counter[str], func: Any, args: tuple, kwargs: dict) -> Any:
    """Compute on the CPU what ``func`` computes; its results are where it would have them."""
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    here = [value for value in tensors if not isinstance(value, DeviceTensor)]
    is_on_device = len(here) < len(tensors)
    if is_on_device and (waits := _what_waits(func.overloadpacket.__name__, args, kwargs)):
        counts[f"{waits}, {_place()}"] += 1
    inner_args, inner_kwargs = tree_map_only(DeviceTensor, on_host, (args, dict(kwargs)))
    target = kwargs.get("device")
    if target is None:
        # A number of the host is an argument of the operation; a tensor must be sent.
        if is_on_device and any(value.dim() for value in here):
            counts[f"{func.overloadpacket.__name__} sends a tensor, {_place()}"] += 1
        goes_to_device = is_on_device
    else:
        goes_to_device, inner_kwargs["device"] = torch.device(target).type == DEVICE, torch.device("cpu")
        if is_on_device and not goes_to_device:
            counts[f"copied to the host, {_place()}"] += 1
        if (
            here
            and goes_to_device
            and not (kwargs.get("non_blocking") and all(hasattr(value, _PINNED) for value in here))
        ):
            counts[f"a tensor is sent while the host waits, {_place()}"] += 1
    result = func(*inner_args, **inner_kwargs)
    if goes_to_device:
        result = tree_map_only(
            torch.Tensor, lambda value: value if isinstance(value, DeviceTensor) else DeviceTensor(value), result
        )
    return return_and_correct_aliasing(func, args, kwargs, result)


def _what_waits(name: str, args: tuple, kwargs: dict) -> str | None:
    if name in _WAITING:
        return name
    if name in _INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1]):
        return f"{name} by a mask"
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        return name
    return None


def _place() -> str:
    """The innermost line of `objectives/`."""
    for frame in reversed(traceback.extract_stack(limit=40)):
        if "/objectives/" in frame.filename and "/tests/" not in frame.filename:
            return f"{frame.filename.rsplit('/objectives/', 1)[1]}:{frame.lineno}"
    return "elsewhere"
