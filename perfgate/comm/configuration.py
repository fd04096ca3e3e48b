"""The comms logger's configuration: the ``comms_logger`` block of a DeepSpeed configuration."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from perfgate.comm.bandwidth import nearest
from perfgate.comm.calls import CALLS
from perfgate.errors import UsageError

BLOCK = "comms_logger"
_TRAINING_KEYS = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "optimizer",
        "zero_optimization",
        "fp16",
        "bf16",
    }
)
_MISSPELT = "did you mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommsConfig:
    """What is logged, and how.

    :param enabled: whether anything is logged at all.
    :param verbose: print a line for every call, on rank 0.
    :param prof_all: log every op; otherwise those of ``prof_ops``, and calls with ``prof=True``.
    :param debug: add the caller's function to the name that a call is logged as.
    :param prof_ops: ops, or log_names, that are logged when ``prof_all`` is false.
    :raises UsageError: for a value of the wrong type, or a name in ``prof_ops`` that is a
        misspelt op.
    """

    enabled: bool = False
    verbose: bool = False
    prof_all: bool = True
    debug: bool = False
    prof_ops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("enabled", "verbose", "prof_all", "debug"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise UsageError(f"{BLOCK}.{name} is {value!r}; write true or false")
        object.__setattr__(self, "prof_ops", op_names(self.prof_ops))


def op_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return names to log: those of ops as they are, others as log_names.

    A name that is nearly an op's is a misspelling, and would silently log nothing. One that is
    built on an op's name, like ``all_reduce_of_gradients``, is a log_name.

    :raises UsageError: for a misspelling, or what is not a list of names.
    """
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, Iterable) or isinstance(names, Mapping):
        raise UsageError(f"prof_ops is {names!r}; write a list of op names, like ['all_reduce']")
    checked = tuple(names)
    for name in checked:
        if not isinstance(name, str):
            raise UsageError(f"prof_ops holds {name!r}; write names of ops, like 'all_reduce'")
        near = () if name in CALLS else difflib.get_close_matches(name, CALLS, 1, _nearness(name))
        if near:
            raise UsageError(
                f"prof_ops holds {name!r}, which is no op; did you mean {near[0]!r}? "
                "(a log_name of your own must not be so near to an op's name)"
            )
    return checked


def _nearness(name: str) -> float:
    return 0.92 if any(op in name for op in CALLS) else 0.75


def read_config(source: CommsConfig | Mapping[str, object] | str | os.PathLike[str]) -> CommsConfig:
    """Return the configuration from a mapping or a JSON file.

    Either holds the block itself or a whole training configuration with a ``comms_logger`` key;
    a training configuration without one logs nothing.

    :raises UsageError: for a file that cannot be read or is no JSON, an unknown key, or a value
        that :class:`CommsConfig` refuses.
    """
    if isinstance(source, CommsConfig):
        return source
    if isinstance(source, Mapping):
        return _from_mapping(source, "the configuration")
    if isinstance(source, (str, os.PathLike)):
        return _from_mapping(_read_json(Path(source)), str(source))
    raise UsageError(f"a configuration is a dict or the path of a JSON file, not {source!r}")


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no JSON: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path} is no JSON: {error.msg}, line {error.lineno} column {error.colno}"
        ) from None
    if not isinstance(content, Mapping):
        raise UsageError(f"{path} holds a {type(content).__name__}; it must be a JSON object")
    return content


def _from_mapping(content: Mapping[str, object], where: str) -> CommsConfig:
    known = [field.name for field in fields(CommsConfig)]
    if BLOCK in content:
        block = content[BLOCK]
        if not isinstance(block, Mapping):
            raise UsageError(f"{where}: {BLOCK} is {block!r}; it must be an object")
        return _checked(block, known, f"{where}: {BLOCK}")
    if _TRAINING_KEYS.isdisjoint(content):
        return _checked(content, [*known, BLOCK], where)
    for key in content:
        if nearest(key, [BLOCK]).startswith(_MISSPELT):
            raise UsageError(f"{where} has a block {key!r}; did you mean {BLOCK!r}?")
    return CommsConfig()


def _checked(block: Mapping[str, object], known: list[str], where: str) -> CommsConfig:
    for key in block:
        if key not in known:
            raise UsageError(f"{where} has no key {key!r}; {nearest(str(key), known)}")
    return CommsConfig(**block)  # type: ignore[arg-type]  # __post_init__ checks the types
