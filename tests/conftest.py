"""Shared test settings: eight fake CPU devices, strict dtypes, warnings, the reference values."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator

# On the versions of constraints.txt continuous integration fails at every warning. Elsewhere only
# dpjax's own do: a later release of a library may warn of what it likes.
_STRICT = os.environ.get("DPJAX_STRICT_WARNINGS") == "1"
_FAIL = (
    ["error"]
    if _STRICT
    else ["error::dpjax._numerics.warning.DpjaxWarning", "error::RuntimeWarning:dpjax"]
)
_PASS = [
    # Said by the clock: a picture's legend took a second to place, on a busy machine.
    "ignore:Creating legend with loc=.best. can be slow:UserWarning",
    # Tests fit many models with one seed.
    "ignore:random_state=.* has drawn the noise of another fit:UserWarning",
    # Workers that meet at the same file of the compilation cache compile once more.
    "ignore:Error (reading|writing) persistent compilation cache:UserWarning",
]
if _STRICT:
    warnings.simplefilter("error")  # of what is imported below; pytest restores the filters

# Before jax is imported: sharding tests need several devices; nothing may look for an accelerator.
# Most of the suite's time is compilation: the compiler is asked for less. The last flags are left
# out where this release of XLA has lost one, since XLA aborts on flags that it does not know.
_FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
_FEWER = (
    f"{_FLAGS} --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    " --xla_llvm_disable_expensive_passes=true"
)
# Two workers fill two cores: NumPy's threads for products would wait for each other, spinning.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "XLA_FLAGS" not in os.environ:
    known = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env=os.environ | {"XLA_FLAGS": _FEWER},
        capture_output=True,
        check=False,
    )
    os.environ["XLA_FLAGS"] = _FLAGS if known.returncode else _FEWER
os.environ.setdefault("MPLBACKEND", "Agg")
# Workers and later runs share what was compiled, small programs too: there are thousands of them.
_COMPILED = pathlib.Path(__file__).resolve().parents[1] / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

from dpjax._numerics import float64, normal  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)



class _Named:
    """Bits in the place of the operating system's: those of a test's name, the same in every run.

    What a command draws for itself, such as which records are held out, decides what it prints: a
    test of that would fail once in so many runs. Processes of their own draw as users' do.
    """

    drawn: Iterator[bytes]

    @classmethod
    def start(cls, name: str) -> None:
        digests = (f"{name} {turn}".encode() for turn in itertools.count())
        cls.drawn = (hashlib.sha256(digest).digest() for digest in digests)

    @classmethod
    def token_bytes(cls, count: int) -> bytes:
        return next(cls.drawn)[:count]


_Named.start("collection")
normal.secrets = types.SimpleNamespace(token_bytes=_Named.token_bytes)

# glibc keeps what is freed: the compiler's threads leave it scattered over an arena each.
_LIBC = ctypes.CDLL(None) if os.name == "posix" else None
_HAND_BACK = getattr(_LIBC, "malloc_trim", None)
# It hands back the large arrays of sums, though, and each comes back as pages to be cleared anew.
if hasattr(_LIBC, "mallopt"):
    for what, most in ((-1, 2**30), (-2, 2**26), (-3, 2**25)):  # trim and mmap from here on, growth
        _LIBC.mallopt(what, most)

# Compilation makes the first example of a property slow; noise in timing is not a failure.
hypothesis.settings.register_profile("dpjax", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("dpjax")

_EXACT = pathlib.Path(__file__).resolve().parent / "exact"
_SHARED = pathlib.Path(
    os.environ.get("DPJAX_SHARED", pathlib.Path(__file__).resolve().parents[2] / "shared")
)


_ENOUGH, _TOO_MUCH = 2.4e9, 2.8e9  # bytes of a worker's memory

# Tracing makes objects by the million, of which little is garbage before a file ends: looking for
# some took a tenth of the suite's time.
gc.set_threshold(100_000, 50, 50)


def pytest_configure(config):
    """Later filters take precedence over earlier ones."""
    for line in [*_FAIL, *_PASS]:
        config.addinivalue_line("filterwarnings", line)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """A fixture that several tests share draws by its own name, whichever asks for it first."""
    if fixturedef.scope != "function":
        _Named.start(f"{fixturedef.baseid} {fixturedef.argname}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    _Named.start(item.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark `exact` what stands in `tests/exact`, and what `at_length` leaves over."""
    seen: dict[str, int] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        place = seen[name] = seen.get(name, -1) + 1
        at_length = item.get_closest_marker("at_length")
        every = at_length.kwargs.get("every") if at_length else None
        if _EXACT in item.path.parents or (at_length and (every is None or place % every)):
            item.add_marker("exact")


def pytest_collection_finish():
    """What was imported stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def programs_of_some_files():
    """Drop what was compiled once it has added up; until then the next file may use some of it."""
    yield
    _drop_beyond(_ENOUGH)


@pytest.fixture(autouse=True)
def programs_of_one_file():
    """Drop what was compiled where a single file makes too much of it, as far as one can tell."""
    yield
    if _resident() < float("inf"):
        _drop_beyond(_TOO_MUCH)


def _drop_beyond(limit: float) -> None:
    if _resident() < limit:
        return
    jax.clear_caches()
    float64.program.cache_clear()
    gc.collect()
    if _HAND_BACK is not None:
        _HAND_BACK(0)


def _resident() -> float:
    """Bytes of memory that this process holds; infinitely many where the system does not say."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("inf")
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of real data sets (`DPJAX_SHARED/data`); tests skip visibly without it."""
    folder = _SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; set DPJAX_SHARED to the folder above it")
    return folder


@pytest.fixture(scope="session")
def oracles() -> dict[str, list[dict]]:
    """Reference values by quantity: {quantity: [{id, params, value, digits, source}, ...]}."""
    file = _SHARED / "oracles.json"
    if not file.is_file():
        pytest.skip(
            f"reference values not found at {file}; set DPJAX_SHARED to the folder above it"
        )
    grouped: dict[str, list[dict]] = {}
    for row in json.loads(file.read_text()):
        grouped.setdefault(row["quantity"], []).append(row)
    return grouped


@pytest.fixture
def lenient_promotion():
    """Third-party code (flax, optax, …) need not obey our strict promotion; ask for this there."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
