"""Define the models of request and response bodies. The document at /openapi.json is generated from these models."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tocsin.service.deployments import TEXT_CHARACTERS_MAX

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
SourceText = Annotated[str, Field(min_length=1, max_length=TEXT_CHARACTERS_MAX)]
Language = Annotated[str | None, Field(pattern=r"^(tesla|eps|siddhi|mcep)$", examples=["tesla"])]


class Strict(BaseModel):
    """A request body that must not have unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Mistake(BaseModel):
    """An error message. An error in the text of rules also has its position in the text.

    `line` and `column` count from 1. `start` and `end` are offsets, which count from 0.
    """

    message: str
    hint: str | None = None
    line: int | None = None
    column: int | None = None
    start: int | None = None
    end: int | None = None


class Problem(BaseModel):
    """The body of all error responses."""

    error: Mistake


class Rejection(BaseModel):
    """A rejected event: its index in the request, which counts from 0, and the reason."""

    index: int
    reason: str


class ReceiptAnswer(BaseModel):
    """The counts of accepted and rejected events. `reasons` has the first thousand rejected events."""

    accepted: int
    rejected: int
    reasons: list[Rejection]
    repeated: bool


class RuleText(Strict):
    """The text of rules and its language. If no language is given, it is guessed."""

    text: SourceText
    language: Language = None


class RuleDeployment(RuleText):
    """The text of rules to deploy. If `replace` is true, the rules replace deployed rules of the same names."""

    replace: bool = False


class RuleAnswer(BaseModel):
    """A deployed rule."""

    id: str
    language: str
    text: str
    emits: list[str]
    by: str
    at_us: int
    matches: int
    per_s: float


class CheckAnswer(BaseModel):
    """Whether a text of rules can be deployed, the names of its rules, and the deployed rules that they replace."""

    ok: bool
    language: str | None = None
    rules: list[str] = []
    replaces: list[str] = []
    error: Mistake | None = None


class DryRunAnswer(BaseModel):
    """The matches of rules in the recent events."""

    events: int
    from_us: int | None
    to_us: int | None
    matches: int
    by_rule: dict[str, int]
    sample: list[dict[str, Any]]


class MatchPage(BaseModel):
    """A page of matches, in order. Request the next page with `after=next`.

    `next` is the number of the last match that was scanned.
    """

    matches: list[dict[str, Any]]
    next: int
    more: bool


class DeadLetter(BaseModel):
    """A rejected event: the reason, its type and time (µs) if known, and the start of its text."""

    number: int
    reason: str
    type: str | None
    ts: int | None
    event: str


class DeadLetterPage(BaseModel):
    """A page of rejected events, in order. Request the next page with `after=next`."""

    dead_letters: list[DeadLetter]
    next: int
    more: bool


class GivenUp(BaseModel):
    """A match that could not be delivered to a webhook, with the last error."""

    number: int
    error: str
    match: dict[str, Any]


class GivenUpPage(BaseModel):
    """A page of matches that could not be delivered, in order. Request the next page with `after=next`."""

    dead_letters: list[GivenUp]
    next: int
    more: bool


class WhyNotQuestion(Strict):
    """A question why a rule did not match at an event, given by its time (µs), its id, or both.

    The event could have been the rule's anchor, the event from which a rule looks back.
    """

    rule: Name
    ts_us: Annotated[int | None, Field(ge=-(2**61), le=2**61)] = None
    id: Annotated[str | None, Field(max_length=1_000)] = None


class WebhookRequest(Strict):
    """The URL to send matches to, and the rules whose matches are sent. An empty list means all rules."""

    url: Annotated[str, Field(min_length=1, max_length=2_000, examples=["https://example.org/hook"])]
    rules: Annotated[list[Name], Field(max_length=1_000)] = []


class WebhookAnswer(BaseModel):
    """A webhook and the state of its deliveries. The secret is returned only when the webhook is created."""

    id: str
    url: str
    rules: list[str]
    cursor: int
    delivered: int
    failures: int
    last_error: str | None
    secret: str | None = None
