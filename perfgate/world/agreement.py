"""Whether the ranks of a world began the same collectives, and who did not.

Pure: histories in, who is to blame out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from perfgate.world.record import BEGUN, Collective

History = Sequence[Collective]


def disagreement(histories: Mapping[int, History]) -> dict[int, str]:
    """Return what the minority of ranks did where the others did something else.

    Histories are compared by number, on the whole world, among the ranks that have come so far
    (see :func:`absence` for the others). Where no side is larger, all of them are named.
    """
    steps = {rank: _comparable(history) for rank, history in histories.items()}
    for number in sorted(set().union(*steps.values())):
        step = {rank: own[number] for rank, own in steps.items() if number in own}
        sides = _sides(step)
        if len(sides) > 1:
            return _blamed(sides, step)
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


def stuck(histories: Mapping[int, History], returned: Collection[int]) -> bool:
    """Whether the ranks that have not returned all wait in a collective that cannot be.

    That is: they disagree, or one that has returned never began it.
    """
    pending = [history for rank, history in histories.items() if rank not in returned]
    waiting = all(history and history[-1].state == BEGUN for history in pending)
    if not (pending and waiting):
        return False
    return bool(disagreement(histories)) or any(rank in returned for rank in absence(histories))


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 2-4``."""
    ordered = sorted(set(ranks))
    runs = groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    spans = [[rank for _, rank in run] for _, run in runs]
    text = ", ".join(f"{s[0]}" if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)
    return f"rank{'s' if len(ordered) > 1 else ''} {text}"


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
    told = {}
    for side in sides if tied else sides[1:]:
        other = sides[0] if side is not sides[0] else sides[1]
        for rank in side:
            where = f"where {name_ranks(other)} called {step[other[0]].text}"
            told[rank] = f"{step[rank]} {where}"
    return dict(sorted(told.items()))
