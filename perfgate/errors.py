"""What can go wrong, as a tree.

::

    PerfgateError
    ├── UsageError          the caller asked for something that cannot be; names the way out
    │   ├── BadUnit         a size, rate or duration that does not parse
    │   └── UnsupportedOp   the backend or provider lacks the op or the dtype
    ├── BaselineError       a baseline that cannot be read, or that must not be written
    └── WorldError          ranks that did not do what they were asked
        ├── LaunchError     a world that never came up
        └── RankFailure     a rank raised, died, hung or left early

A pytest plugin turns :class:`UsageError` and :class:`BaselineError` into ``pytest.UsageError``
or a failed test; the command line prints their text and returns 2.
"""

from __future__ import annotations


class PerfgateError(Exception):
    """Base of everything perfgate raises on purpose."""


class UsageError(PerfgateError):
    """The caller asked for something that cannot be. The text names the way out."""


class BadUnit(UsageError, ValueError):
    """A size, rate or duration that does not parse."""


class UnsupportedOp(UsageError):
    """The backend or the provider lacks this op, or lacks it for this dtype."""


class BaselineError(PerfgateError):
    """A baseline file that cannot be read, or that must not be overwritten."""


class WorldError(PerfgateError):
    """Ranks that did not do what they were asked."""


class LaunchError(WorldError):
    """A world that never came up."""
