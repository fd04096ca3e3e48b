"""Whether the ranks of a world began the same collectives, and who did not.

Pure: histories in, who is to blame out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfgate.world.record import BEGUN, Collective

History = Sequence[Collective]


def disagreement(histories: Mapping[int, History]) -> dict[int, str]:
    """Return what the minority of ranks did where the others did something else.

    Histories are compared by number, on the whole world; a rank whose history ends earlier does
    not disagree (see :func:`absence`). Where no side is larger, all ranks are named.
    """
    steps = {rank: _comparable(history) for rank, history in histories.items()}
    shared = set.intersection(*(set(step) for step in steps.values())) if steps else set()
    for number in sorted(shared):
        sides = _sides({rank: step[number] for rank, step in steps.items()})
        if len(sides) > 1:
            return _blamed(sides, {rank: step[number] for rank, step in steps.items()})
    return {}


def absence(histories: Mapping[int, History]) -> dict[int, str]:
    """Return, by rank, the collective on the whole world that others began and it did not."""
    steps = {rank: _comparable(history) for rank, history in histories.items()}
    ends = {rank: max(step, default=0) for rank, step in steps.items()}
    furthest = max(ends.values(), default=0)
    absent = {}
    for rank, end in ends.items():
        joined = [other for other in ends if end + 1 in steps[other]]
        if end < furthest and joined:
            absent[rank] = str(steps[joined[0]][end + 1])
    return absent


def last(history: History) -> str:
    """Return the last collective in words, or nothing."""
    if not history:
        return ""
    latest = history[-1]
    return str(latest) + (" (under way)" if latest.state == BEGUN else "")


def _comparable(history: History) -> dict[int, Collective]:
    # One that raised is replaced by the next of the same number: it never happened.
    return {one.number: one for one in history if not one.group and one.key}


def _sides(step: Mapping[int, Collective]) -> list[list[int]]:
    """Return the ranks by what they did, the largest side first."""
    sides: dict[str, list[int]] = {}
    for rank, one in step.items():
        sides.setdefault(one.key, []).append(rank)
    return sorted(sides.values(), key=len, reverse=True)


def _blamed(sides: list[list[int]], step: Mapping[int, Collective]) -> dict[int, str]:
    tied = len(sides[0]) == len(sides[1])
    guilty = [rank for side in (sides if tied else sides[1:]) for rank in side]
    return {rank: str(step[rank]) for rank in sorted(guilty)}
