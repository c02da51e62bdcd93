"""Rules: check, dry run, deploy, look, remove."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path

from tocsin.errors import RuleError
from tocsin.service import inspection
from tocsin.service.deployments import Deployed
from tocsin.service.service import NotFound, Service
from tocsin.service.web_access import Deployer, Here, Onlooker
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
        matches=service.detection.matches_by_rule[rule.id],
        per_s=round(service.match_rates.per_s().get(rule.id, 0.0), 2),
    )


@router.post("/rules", status_code=201)
async def deploy(deployment: RuleDeployment, place: Here, token: Deployer) -> list[RuleAnswer]:
    """Deploy the rules of a text. They see events from now on."""
    service = place.service
    future = await asyncio.to_thread(
        service.deploy, deployment.text, deployment.language, replace=deployment.replace, by=token.name
    )
    return [_answer(service, rule) for rule in await asyncio.wrap_future(future)]


@router.get("/rules")
def rules(place: Here, token: Onlooker) -> list[RuleAnswer]:
    """All rules that are deployed."""
    return [_answer(place.service, rule) for rule in place.service.rules.values()]


@router.post("/rules/check")
def check(text: RuleText, place: Here, token: Deployer) -> CheckAnswer:
    """Read a text and say what is wrong with it, without deploying anything."""
    try:
        read = place.service.check(text.text, text.language)
    except RuleError as error:
        return CheckAnswer(ok=False, error=Mistake(**inspection.told(error)))
    replaces = [name for name in read.names if name in place.service.rules]
    return CheckAnswer(ok=True, language=read.language, rules=list(read.names), replaces=replaces)


@router.post("/rules/dry-run")
async def dry_run(text: RuleText, place: Here, token: Deployer) -> DryRunAnswer:
    """What the rules of a text would have found in the last events, without deploying anything."""
    async with place.dry_runs:
        return DryRunAnswer(**await asyncio.to_thread(inspection.dry_run, place.service, text.text, text.language))


@router.get("/rules/{id}")
def rule(id: Id, place: Here, token: Onlooker) -> RuleAnswer:
    """One rule."""
    found = place.service.rules.get(id)
    if found is None:
        raise NotFound(f"there is no rule {id}")
    return _answer(place.service, found)


@router.delete("/rules/{id}", status_code=204)
async def remove(id: Id, place: Here, token: Deployer) -> None:
    """Remove a rule. What it found stays."""
    future = await asyncio.to_thread(place.service.remove, id, token.name)
    await asyncio.wrap_future(future)


@router.post("/why-not", tags=["matches"])
def why_not(question: WhyNotQuestion, place: Here, token: Onlooker) -> list[dict[str, Any]]:
    """For an event that could have been the anchor of a rule: what the rule asked, and the first thing not met."""
    return inspection.why_not(place.service, question.rule, question.ts_us, question.id)
