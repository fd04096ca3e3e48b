"""Read a DeepSpeed configuration: take what is about reducing, refuse what would be ignored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfgate.errors import UsageError
from perfgate.zero.config import ZeroConfig, unknown_key
from perfgate.zero.deepspeed_keys import (
    CHANGES_TRAINING,
    HONOURED_OUTSIDE,
    LEAVES_GRADIENTS_ALONE,
    NEUTRAL,
    REFUSED_IN_BLOCK,
    STAGE_3_ONLY,
)

_BLOCK = "zero_optimization"


def read_config(source: Mapping[str, Any] | str | Path) -> ZeroConfig:
    """Return the reducer's part of a DeepSpeed configuration.

    :param source: the configuration, or the path of its JSON file.
    :raises UsageError: on a file that cannot be read, a key that is unknown (with the nearest
        one), is refused or has a bad value, each by its name.
    """
    whole = source if isinstance(source, Mapping) else _load(Path(source))
    whole = {_plain(key): value for key, value in whole.items()}
    block = whole.pop(_BLOCK, None)
    if not isinstance(block, Mapping):
        raise UsageError(f'the configuration has no {_BLOCK} block; write one: {{"stage": 2}}')
    values = _from_block(block)
    data_types = dict(whole.pop("data_types", None) or {})
    values |= {"grad_accum_dtype": data_types.pop("grad_accum_dtype", None)}
    for key in data_types:
        raise UsageError(unknown_key(f"data_types.{key}", ["data_types.grad_accum_dtype"]))
    values |= {key: value for key, value in whole.items() if key in HONOURED_OUTSIDE}
    _check_rest(whole.keys() - HONOURED_OUTSIDE, whole)
    return ZeroConfig(**values)


def _from_block(block: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for key, value in block.items():
        plain = key.removeprefix("stage3_")
        if plain in STAGE_3_ONLY:
            continue
        if key in REFUSED_IN_BLOCK:
            if not _is_off(key, value):
                raise UsageError(f"{_BLOCK}.{key}={value!r} is refused: {REFUSED_IN_BLOCK[key]}")
        elif key in ZeroConfig.model_fields and key not in HONOURED_OUTSIDE:
            values[key] = value
        else:
            known = [*ZeroConfig.model_fields, *STAGE_3_ONLY, *REFUSED_IN_BLOCK]
            raise UsageError(unknown_key(f"{_BLOCK}.{key}", [f"{_BLOCK}.{name}" for name in known]))
    return values


def _check_rest(keys: Iterable[str], whole: Mapping[str, Any]) -> None:
    for key in sorted(keys):
        if key in CHANGES_TRAINING:
            if not _is_off(key, whole[key]):
                raise UsageError(
                    f"{key} is refused: it changes what is trained, and is not done here. The "
                    "optimizer and its scheduler are given to ZeroOptimizer in Python"
                )
        elif key not in LEAVES_GRADIENTS_ALONE:
            known = [_BLOCK, "data_types", *HONOURED_OUTSIDE, *CHANGES_TRAINING]
            raise UsageError(unknown_key(key, [*known, *LEAVES_GRADIENTS_ALONE]))


def _is_off(key: str, value: Any) -> bool:
    """Whether a refused key does nothing: off, empty, or a device of none."""
    if isinstance(value, Mapping):
        if "device" in value:
            return value["device"] in (None, "none")
        return not value.get("enabled", bool(value))
    return value is None or value is False or (value is not True and value == NEUTRAL.get(key))


def _plain(key: str) -> str:
    """Return a key's name in a file; DeepSpeed's log prints ``zero_config``, ``amp_enabled``."""
    if key in ("zero_config", _BLOCK):
        return _BLOCK
    return key.removesuffix("_config").removesuffix("_enabled").removesuffix("_")


def _load(path: Path) -> Mapping[str, Any]:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_distinct)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not JSON, or not text
        raise UsageError(f"{path} is no JSON: {error}") from error
    if not isinstance(whole, dict):
        raise UsageError(f"{path} holds {type(whole).__name__}; a configuration is an object")
    return whole


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise UsageError(f"{key} stands twice, as {seen[key]!r} and as {value!r}; keep one")
        seen[key] = value
    return seen
