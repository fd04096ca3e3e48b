"""The number of a collective in its group: equal on all ranks, whatever each of them logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.distributed import ProcessGroup

_point_to_point: WeakKeyDictionary[ProcessGroup, int] = WeakKeyDictionary()


def collective_number(group: ProcessGroup) -> int:
    """Return the number of the group's last collective, 0 where the backend does not count.

    gloo counts point-to-point calls too, which differ between ranks; those made by
    :func:`point_to_point` are taken off again.
    """
    try:
        number: int = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
    except RuntimeError:  # the backend does not count
        return 0
    return number - _point_to_point.get(group, 0) if _point_to_point else number


def point_to_point(
    group: ProcessGroup | None, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call a point-to-point function, and note what it adds to its group's counter."""
    if not isinstance(group, ProcessGroup):
        return function(*arguments)
    before = collective_number(group)
    result = function(*arguments)
    added = collective_number(group) - before
    if added:
        _point_to_point[group] = _point_to_point.get(group, 0) + added
    return result
