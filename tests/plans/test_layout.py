"""Does every event reach the rules that need it, and no rule in two slots?"""

from __future__ import annotations

import tocsin
from tocsin.plans.layout import Layout, lay_out

FIRE = "define Fire() from Smoke(area = $a) and last Temp(area = $a) within 1 s from Smoke "
COUNT = "define Crowd() from {}() and 3 < Count(Temp() within 1 s from {})"


def laid_out(text: str, slots: int = 4) -> Layout:
    declared = "event Smoke(area: string, room: string)\nevent Temp(area: string)\nevent Wind(area: string)\n"
    return lay_out(tocsin.rules(declared + text).plan, slots)


def test_a_rule_whose_events_are_joined_is_keyed() -> None:
    (unit,) = laid_out(FIRE).units
    assert (unit.key, unit.slot) == ({"Smoke": "area", "Temp": "area"}, None)
    assert laid_out(FIRE, slots=1).units[0].slot == 0


def test_a_rule_is_placed_if_its_anchor_is_needed_elsewhere() -> None:
    """The anchor would be answered in the slot of its key and where the other rule is."""
    units = laid_out(FIRE + COUNT.format("Smoke", "Smoke")).homes
    assert (units["Fire"].key, units["Crowd"].key) == (None, None)


def test_what_is_only_looked_back_at_may_be_needed_elsewhere() -> None:
    units = laid_out(FIRE + COUNT.format("Wind", "Wind")).homes
    assert units["Fire"].key is not None
    assert units["Crowd"].key is None


def test_rules_of_one_event_follow_the_keys_of_others() -> None:
    alone = "define Alarm(room: string, area: string) from Smoke() where room = Smoke.room, area = Smoke.area "
    units = laid_out(alone + FIRE).homes
    assert units["Alarm"].key == {"Smoke": "area"}
    assert units["Fire"].key == {"Smoke": "area", "Temp": "area"}


def test_two_keys_of_one_anchor() -> None:
    other = "define Other() from Smoke(room = $r) and last Wind(area = $r) within 1 s from Smoke "
    assert [unit.key for unit in laid_out(FIRE + other).units] == [None, None]
