"""What requests and answers look like; the document at /openapi.json is made of these."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tocsin.service.deployments import TEXT_CHARACTERS_MAX

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
SourceText = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)]
Language = Annotated[str | None, Field(pattern=r"^(tesla|eps|siddhi|mcep)$", examples=["tesla"])]


class Strict(BaseModel):
    """What is not named is a mistake."""

    model_config = ConfigDict(extra="forbid")


class Mistake(BaseModel):
    """What is wrong, and for the text of rules where: line and column from 1, offsets from 0."""

    message: str
    hint: str | None = None
    line: int | None = None
    column: int | None = None
    start: int | None = None
    end: int | None = None


class Problem(BaseModel):
    """Every answer that is not what was asked for."""

    error: Mistake


class Rejection(BaseModel):
    """An event that was not accepted: its place in the request, from 0, and why."""

    index: int
    reason: str


class ReceiptAnswer(BaseModel):
    """What became of the events. `reasons` has the first thousand of those rejected."""

    accepted: int
    rejected: int
    reasons: list[Rejection]
    repeated: bool


class RuleText(Strict):
    """A text of rules; without a language it is the one that it looks like."""

    text: SourceText
    language: Language = None


class RuleDeployment(RuleText):
    """`replace`: rules of the same names go."""

    replace: bool = False


class RuleAnswer(BaseModel):
    """A rule that is deployed."""

    id: str
    language: str
    text: str
    emits: list[str]
    by: str
    at_us: int
    matches: int
    per_s: float


class CheckAnswer(BaseModel):
    """Whether a text could be deployed, and what would be."""

    ok: bool
    language: str | None = None
    rules: list[str] = []
    replaces: list[str] = []
    error: Mistake | None = None


class DryRunAnswer(BaseModel):
    """What rules would have found in the last events."""

    events: int
    from_us: int | None
    to_us: int | None
    matches: int
    by_rule: dict[str, int]
    sample: list[dict[str, Any]]


class MatchPage(BaseModel):
    """Matches in order; ask with `after=next` for those behind them. `next` is the last number that was looked at."""

    matches: list[dict[str, Any]]
    next: int
    more: bool


class DeadLetter(BaseModel):
    """An event that was not used: why, its type and time (µs), if they are known, and the start of its text."""

    number: int
    reason: str
    type: str | None
    ts: int | None
    event: str


class DeadLetterPage(BaseModel):
    """Events that were not used, in order; ask with `after=next` for the ones that follow."""

    dead_letters: list[DeadLetter]
    next: int
    more: bool


class GivenUp(BaseModel):
    """A match that a webhook's receiver did not take, with the last error."""

    number: int
    error: str
    match: dict[str, Any]


class GivenUpPage(BaseModel):
    """Matches that were given up, in order; ask with `after=next` for the ones that follow."""

    dead_letters: list[GivenUp]
    next: int
    more: bool


class WhyNotQuestion(Strict):
    """An event that could have been the anchor of a rule, by its time (µs), its id, or both."""

    rule: Name
    ts_us: Annotated[int | None, Field(ge=-(2**61), le=2**61)] = None
    id: Annotated[str | None, Field(max_length=1_000)] = None


class WebhookRequest(Strict):
    """Where to send matches, and of which rules; of all, if none is named."""

    url: Annotated[str, Field(min_length=1, max_length=2_000, examples=["https://example.org/hook"])]
    rules: Annotated[list[Name], Field(max_length=1_000)] = []


class WebhookAnswer(BaseModel):
    """A webhook. The secret is told when it is made, and never again."""

    id: str
    url: str
    rules: list[str]
    cursor: int
    delivered: int
    failures: int
    last_error: str | None
    secret: str | None = None
