"""Define the routes that check, dry-run, deploy, list and remove rules, and explain why a rule did not match."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path

from tocsin.errors import RuleError
from tocsin.service import inspection
from tocsin.service.deployments import Deployed
from tocsin.service.service import NotFound, Service
from tocsin.service.web_access import Deployer, Observer, State
from tocsin.service.web_models import (
    CheckAnswer,
    DryRunAnswer,
    Mistake,
    RuleAnswer,
    RuleDeployment,
    RuleText,
    WhyNotQuestion,
)

router = APIRouter(tags=["rules"])

Id = Annotated[str, Path(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]


def _answer(service: Service, rule: Deployed) -> RuleAnswer:
    return RuleAnswer(
        id=rule.id,
        language=rule.language,
        text=rule.source,
        emits=list(rule.emits),
        by=rule.by,
        at_us=rule.at_us,
        matches=service.backend.matches_by_rule[rule.id],
        per_s=round(service.match_rates.per_s().get(rule.id, 0.0), 2),
    )


@router.post("/rules", status_code=201)
async def deploy(deployment: RuleDeployment, state: State, token: Deployer) -> list[RuleAnswer]:
    """Deploy the rules of a text. The rules process events that arrive from now on."""
    service = state.service
    future = await asyncio.to_thread(
        service.deploy, deployment.text, deployment.language, replace=deployment.replace, by=token.name
    )
    return [_answer(service, rule) for rule in await asyncio.wrap_future(future)]


@router.get("/rules")
def rules(state: State, token: Observer) -> list[RuleAnswer]:
    """Return all deployed rules."""
    return [_answer(state.service, rule) for rule in state.service.rules.values()]


@router.post("/rules/check")
def check(text: RuleText, state: State, token: Deployer) -> CheckAnswer:
    """Check whether the rules of a text can be deployed, without deploying them."""
    try:
        read = state.service.check(text.text, text.language)
    except RuleError as error:
        return CheckAnswer(ok=False, error=Mistake(**inspection.error_fields(error)))
    replaces = [name for name in read.names if name in state.service.rules]
    return CheckAnswer(ok=True, language=read.language, rules=list(read.names), replaces=replaces)


@router.post("/rules/dry-run")
async def dry_run(text: RuleText, state: State, token: Deployer) -> DryRunAnswer:
    """Return the matches of the rules of a text in the recent events, without deploying the rules."""
    async with state.dry_runs:
        return DryRunAnswer(**await asyncio.to_thread(inspection.dry_run, state.service, text.text, text.language))


@router.get("/rules/{id}")
def rule(id: Id, state: State, token: Observer) -> RuleAnswer:
    """Return one deployed rule."""
    deployed = state.service.rules.get(id)
    if deployed is None:
        raise NotFound(f"there is no rule {id}")
    return _answer(state.service, deployed)


@router.delete("/rules/{id}", status_code=204)
async def remove(id: Id, state: State, token: Deployer) -> None:
    """Remove a rule. The matches of the rule stay."""
    future = await asyncio.to_thread(state.service.remove, id, token.name)
    await asyncio.wrap_future(future)


@router.post("/why-not", tags=["matches"])
def why_not(question: WhyNotQuestion, state: State, token: Observer) -> list[dict[str, Any]]:
    """Explain why a rule did not match at an event.

    Return the conditions that held, and the first condition that did not hold.
    """
    return inspection.why_not(state.service, question.rule, question.ts_us, question.id)
