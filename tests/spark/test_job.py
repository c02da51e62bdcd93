"""A sent job is the original on the driver, freed with its last reference; workers unpickle it once."""

from __future__ import annotations

import gc
import pickle
import weakref

import tocsin
from tocsin.events.reader import Columns
from tocsin.plans.assignment import Layout, RuleUnit
from tocsin.plans.typing import Catalog
from tocsin.spark.job import Job, SentJob, send

RULE = """
    define Fire(area: string)
    from   Smoke(area = $a) and last Temp(area = $a, value > 45) within 5 min from Smoke
    where  area = $a
"""


def made() -> Job:
    (rule,) = tocsin.rules(RULE).rules
    return Job((rule,), Catalog(), Columns(), Layout(1, (RuleUnit((rule.name,), None, 0),)), 0, times=False)


def test_a_job_is_read_once_by_those_that_did_not_make_it() -> None:
    job = made()
    sent = send(job)
    assert sent.job is job
    arrived: SentJob[Job] = pickle.loads(pickle.dumps(sent))
    assert arrived.job is not job
    assert arrived.job is pickle.loads(pickle.dumps(arrived)).job
    assert arrived.job.types == job.types
    assert [rule.name for rule in arrived.job.rules_of(0)] == ["Fire"]


def test_a_job_goes_with_the_last_who_has_it() -> None:
    sent = send(made())
    job = weakref.ref(sent.job)
    del sent
    gc.collect()
    assert job() is None
