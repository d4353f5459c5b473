"""Compile a C++ kernel for this processor, once, and load it; free of torch.

The sources include nothing but the standard library, so a kernel compiles in seconds. It is kept in a folder of the
caller's, by a hash of sources, compiler and processor, so that a changed one is never used by mistake.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from objectives.native.cache import kernel_folder

_SOURCES = Path(__file__).parent
# What of -O3 the kernels gain by; all of it compiles half as fast.
_OPTIMIZATIONS = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops")
# No flag lets the compiler reorder a sum or assume that numbers are finite.
_FLAGS = ("-std=c++17", *_OPTIMIZATIONS, "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math")
# By kernel, whether a product and a sum are rounded once, or twice as torch's elementwise operations are.
KERNELS = {
    "gpt": "-ffp-contract=fast",
    "adamw": "-ffp-contract=off",
    "telemetry": "-ffp-contract=fast",
    "hessian": "-ffp-contract=fast",
}
# The variable by which torch's own kernels are restricted restricts these, too.
_CAPABILITIES = {"default": "x86-64", "avx2": "x86-64-v3"}
_TIMEOUT_S = 600
_REMEDY = "resources.kernels: default trains without"


def compiler() -> list[str]:
    """Return the words that begin a call of the C++ compiler, ``$CXX`` if set; none without one."""
    named = shlex.split(os.environ.get("CXX", ""))
    calls = [named] if named else [["c++"], ["g++"], ["clang++"]]
    return next(([path, *rest] for name, *rest in calls if (path := shutil.which(name))), [])


@cache
def load(name: str, folder: Path, real: str = "float", *options: str) -> ctypes.CDLL:
    """Load the kernel ``name``, for numbers of the C++ type ``real``; compiles it if ``folder`` lacks it.

    Raises RuntimeError, with the compiler's own words, if it cannot be compiled.
    """
    path = built(name, folder, real, *options)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeError(f"cannot load {path}: {error} (delete it to compile it again; {_REMEDY})") from None


def built(name: str, folder: Path, real: str = "float", *options: str) -> Path:
    """Return the compiled kernel ``name`` in ``folder``, and compile it if it is not there. See ``load``."""
    path = folder / _file(name, real, options)
    if path.is_file():
        return path
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # workers start together, and one of them compiles for all
            if not path.is_file():
                _compile(name, path, real, options)
        return path
    except OSError:  # a disk that cannot be written, or is full: for this process alone
        private = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        _compile(name, Path(private, path.name), real, options)
        return Path(private, path.name)


def compile_kernels(names: Iterable[str]) -> None:
    """Compile those that the folder of kernels lacks; whoever loads a kernel that fails to compile gets the error."""
    with suppress(RuntimeError):
        for name in names:
            built(name, kernel_folder())


def failure() -> str | None:
    """Return why kernels cannot be compiled here, in the compiler's own words, or None if they can, or one was.

    Takes a fraction of a second: a line of C++ is compiled, with all flags of the kernels.
    """
    folder = kernel_folder()
    if any((folder / _file(name, "float", ())).is_file() for name in KERNELS):
        return None
    try:
        with tempfile.TemporaryDirectory() as place:
            source = Path(place, "probe.cpp")
            source.write_text('#include <vector>\nextern "C" int probe() { return std::vector<int>(1)[0]; }\n')
            _call_compiler([*_flags(), *dict.fromkeys(KERNELS.values()), str(source), "-o", str(source) + ".so"])
    except RuntimeError as error:
        return str(error)
    return None


def _compile(name: str, path: Path, real: str, options: Sequence[str]) -> None:
    # Compiled beside its place and moved there, so that a killed compiler leaves no half kernel.
    with tempfile.TemporaryDirectory(dir=path.parent) as beside:
        made = Path(beside, path.name)
        flags = [*_flags(), KERNELS[name], f"-DREAL={real}", *options]
        try:
            _call_compiler([*flags, str(_SOURCES / f"{name}.cpp"), "-o", str(made)])
        except RuntimeError as error:
            raise RuntimeError(f"{error} ({_REMEDY})") from None
        os.replace(made, path)


def _call_compiler(arguments: Sequence[str]) -> None:
    """Call the compiler. Raises RuntimeError, with the first line that it says, if it fails or there is none."""
    call = compiler()
    if not call:
        raise RuntimeError("no C++ compiler was found: install g++ or clang++")
    try:
        done = subprocess.run([*call, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{call[0]} failed: {error}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        raise RuntimeError(f"{call[0]} failed: {said}")


def _file(name: str, real: str, options: Sequence[str]) -> str:
    return f"{name}-{real}-{_hash(name, real, options)}.so"


def _flags() -> list[str]:
    flags = list(_FLAGS)
    capability = os.environ.get("ATEN_CPU_CAPABILITY", "")
    if platform.machine() != "x86_64":
        return [*flags, "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"]
    flags.append(f"-march={_CAPABILITIES.get(capability, 'native')}")
    # GCC prefers half of a long vector, for fear of a lower clock.
    return flags if capability in _CAPABILITIES else [*flags, "-mprefer-vector-width=512"]


@cache
def _hash(name: str, real: str, options: Sequence[str]) -> str:
    sources = [_SOURCES / f"{name}.cpp", *sorted(_SOURCES.glob("*.hpp"))]
    content = [path.read_bytes() for path in sources]
    content += [" ".join([real, *_flags(), *options]).encode(), _identity(compiler()).encode(), _processor().encode()]
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:16]


def _identity(call: Sequence[str]) -> str:
    """What changes with the compiler or its version: its words, and the size and date of each that is a program."""
    paths = [os.path.realpath(path) for word in call if (path := shutil.which(word))]
    return " ".join([*call, *(f"{path} {os.stat(path).st_size} {os.stat(path).st_mtime_ns}" for path in paths)])


def _processor() -> str:
    """The processor's name and instruction sets, so that a shared home serves unlike machines."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(dict.fromkeys(line for line in lines if re.match(r"(model name|flags|Features)\s*:", line)))
    return platform.processor()
