"""Stored states restore, and then give the matches of an uninterrupted stream."""

from __future__ import annotations

import pytest

from tests.guards import states
from tests.guards.cases import LANGUAGES, difference


@pytest.mark.parametrize("language", LANGUAGES)
def test_detectors_continue_from_stored_snapshots(language: str) -> None:
    stored = list(states.detectors(language))
    assert len(stored) == states.PER_LANGUAGE
    for case, data in stored:
        wrong = difference(case, states.continued(case, data))
        assert not wrong, wrong


@pytest.mark.parametrize("language", LANGUAGES)
def test_slots_continue_from_stored_state(language: str) -> None:
    stored = list(states.slots(language))
    assert len(stored) == states.SLOTS_PER_LANGUAGE
    for case, data in stored:
        wrong = difference(case, states.continued_slots(case, data))
        assert not wrong, wrong


def test_processors_continue_from_stored_states() -> None:
    stored = list(states.networks())
    assert len(stored) == states.NETWORKS
    for case, processors, notices in stored:
        assert states.continued_network(case, processors) == notices, case
    assert sum(len(notices) for _, _, notices in stored) > 100
