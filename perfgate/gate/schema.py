"""The baseline file: its schema, and one case a line so that a diff can be read.

::

    {"tool": "perfgate", "schema": 2,
    "environment": {"cores": "2", ...},
    "columns": ["p10_us", "p25_us", "p50_us", "p95_us", "calls", "probe_us"],
    "cases": {
    "t.py::t | all_reduce ...": {"figure": "p25_s", "follows": 1.0, "pinned": null, "sessions":
    [{...}, ...]},
    ...
    }}

Six figures of a time are kept, in microseconds; portable ratios have no unit. A launch without a
probe of the machine has no last column. Keys are sorted
and sessions stand oldest first, so that writing what was read gives the same bytes.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from perfgate.errors import BaselineError
from perfgate.gate.environment import Environment
from perfgate.model import Launch, Session

SCHEMA = 2
COLUMNS = ("p10_us", "p25_us", "p50_us", "p95_us", "calls", "probe_us")
RATIO_COLUMNS = ("p10", "p25", "p50", "p95", "pairs")
_SCALE: dict[tuple[str, ...], float] = {COLUMNS: 1e6, RATIO_COLUMNS: 1.0}


def _utc(text: str) -> str:
    date = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
    if date.tzinfo is None or date.utcoffset():
        raise ValueError(f"date {text!r} is not in UTC; write it like 2026-01-31T12:00:00Z")
    return text


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Calls = Annotated[int, Field(ge=1)]
Figures = tuple[Positive, Positive, Positive, Positive, Calls]
Probed = tuple[Positive, Positive, Positive, Positive, Calls, Positive]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StoredSession(_Strict):
    """One accepted run, its launches as rows of :data:`COLUMNS`.

    ``others`` is the share of the processor that other processes used meanwhile.
    """

    commit: Annotated[str, Field(min_length=1)]
    date: Annotated[str, AfterValidator(_utc)]
    others: Annotated[float, Field(ge=0, le=1)] = 0.0
    launches: Annotated[list[Figures | Probed], Field(min_length=1)]

    @model_validator(mode="after")
    def _quantiles_rise(self) -> StoredSession:
        for row in self.launches:
            if list(row[:4]) != sorted(row[:4]):
                raise ValueError(f"quantiles must not fall: {row}")
        return self

    @classmethod
    def of(cls, session: Session, scale: float = 1e6) -> StoredSession:
        """Return the stored form of a session, its figures times ``scale``."""
        return cls(
            commit=session.commit,
            date=session.date,
            others=round(session.others_share, 3),
            launches=[_row(launch, scale) for launch in session.launches],
        )

    def session(self, scale: float = 1e6) -> Session:
        """Return the session, its figures divided by ``scale`` again."""
        return Session(
            commit=self.commit,
            date=self.date,
            others_share=self.others,
            launches=tuple(_launch(row, scale) for row in self.launches),
        )


class StoredCase(_Strict):
    """A case's sessions, oldest first, and the commit of the one that is never dropped.

    ``figure`` is what is compared, p25 until a calibration found a steadier one, and ``follows``
    how far it follows the machine's pace.
    """

    figure: Literal["p10_s", "p25_s", "p50_s"] = "p25_s"
    follows: Annotated[float, Field(ge=0, le=1)] = 0.0
    pinned: str | None = None
    sessions: Annotated[list[StoredSession], Field(min_length=1)]


class BaselineFile(_Strict):
    """All cases of one suite in one environment."""

    tool: Literal["perfgate"] = "perfgate"
    schema_version: Annotated[int, Field(alias="schema", serialization_alias="schema")] = SCHEMA
    environment: dict[str, str]
    columns: list[str] = Field(default_factory=lambda: list(COLUMNS))
    cases: dict[str, StoredCase] = Field(default_factory=dict)

    @classmethod
    def empty(cls, environment: Environment) -> BaselineFile:
        """Return the file to begin with in an environment."""
        columns = RATIO_COLUMNS if environment.portable else COLUMNS
        return cls(environment=dict(environment.hard), columns=list(columns))

    @property
    def scale(self) -> float:
        """What figures are multiplied with to be stored."""
        return _SCALE[tuple(self.columns)]

    @property
    def identity(self) -> Environment:
        """The environment that the figures were taken in."""
        return Environment(hard=self.environment)

    def render(self) -> str:
        """Return the file's text."""
        head = {"tool": self.tool, "schema": self.schema_version}
        lines = [
            json.dumps(head)[:-1] + ",",
            f'"environment": {_text(dict(sorted(self.environment.items())))},',
            f'"columns": {_text(list(self.columns))},',
            '"cases": {',
        ]
        cases = [f"{_text(name)}: {_text(case.model_dump())}" for name, case in self.sorted_cases()]
        return "\n".join([*lines, *([",\n".join(cases)] if cases else []), "}}", ""])

    def sorted_cases(self) -> list[tuple[str, StoredCase]]:
        """Return the cases in the order in which they are written."""
        return sorted(self.cases.items())


_FILE = TypeAdapter(BaselineFile)


def parse(text: str, name: str) -> BaselineFile:
    """Return the file that ``text`` holds; ``name`` is what to call it in errors.

    :raises BaselineError: when it is cut, not ours, of another schema or otherwise wrong, with
        the line.
    """
    content = _json(text, name)
    if not isinstance(content, dict) or content.get("tool") != "perfgate":
        raise BaselineError(f"{name}:1: not a perfgate baseline; it is left as it is")
    schema = content.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise BaselineError(
            f"{name}:{_line_of(text, 'schema')}: schema {schema!r}, this perfgate reads {SCHEMA}; "
            "use the perfgate that wrote it, or move the file away and refresh"
        )
    if content.get("columns") not in [list(columns) for columns in _SCALE]:
        raise BaselineError(
            f"{name}:{_line_of(text, 'columns')}: columns {content.get('columns')!r}, "
            f"this perfgate reads {list(COLUMNS)}"
        )
    try:
        return _FILE.validate_json(text)
    except ValidationError as error:
        raise BaselineError(_explain(error, text, name)) from error


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        cause = "an unresolved merge" if "<<<<<<< " in text else "the file may be cut short"
        raise BaselineError(
            f"{name}:{error.lineno}: no valid JSON, {cause}: {error.msg}"
        ) from error
    except _WrongValue as error:
        line = _line_of(text, error.args[0])
        raise BaselineError(f"{name}:{line}: {error.args[1]}") from error
    except RecursionError as error:
        raise BaselineError(f"{name}:1: nested too deeply for a perfgate baseline") from error


class _WrongValue(Exception):
    """JSON that Python reads and a baseline may not hold: the text to look for, the reason."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise _WrongValue(name, f"{name!r} stands there twice; keep one")
    return dict(pairs)


def _no_constant(constant: str) -> Any:
    raise _WrongValue(constant, f"{constant} is no time")


def _explain(error: ValidationError, text: str, name: str) -> str:
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    needle = place[1] if place[:1] == ["cases"] and len(place) > 1 else (place or [""])[0]
    return f"{name}:{_line_of(text, needle)}: {' > '.join(place)}: {first['msg']}"


def _line_of(text: str, needle: str) -> int:
    """Return the number of the first line that holds ``needle``, as a JSON string if it can."""
    lines = text.splitlines()
    for wanted in (_text(needle), needle):
        for number, line in enumerate(lines, start=1):
            if wanted in line:
                return number
    return 1


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _row(launch: Launch, scale: float) -> Figures | Probed:
    p10, p25, p50, p95 = (
        _rounded(figure * scale)
        for figure in (launch.p10_s, launch.p25_s, launch.p50_s, launch.p95_s)
    )
    if launch.probe_s is None:
        return p10, p25, p50, p95, launch.calls
    return p10, p25, p50, p95, launch.calls, _rounded(launch.probe_s * scale)


def _rounded(figure: float) -> float:
    return float(f"{figure:.6g}")


def _launch(row: Figures | Probed, scale: float) -> Launch:
    p10, p25, p50, p95 = (figure / scale for figure in row[:4])
    probe_s = row[5] / scale if len(row) > 5 else None
    return Launch(p10_s=p10, p25_s=p25, p50_s=p50, p95_s=p95, calls=row[4], probe_s=probe_s)
