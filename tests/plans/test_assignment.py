"""Every event reaches the rules that need it, and no match is detected in two slots."""

from __future__ import annotations

from collections import Counter

import tocsin
from tocsin.plans.assignment import Layout, assign_rules
from tocsin.plans.placers import Sctxpf

FIRE = "define Fire() from Smoke(area = $a) and last Temp(area = $a) within 1 s from Smoke "
COUNT = "define Crowd() from {}() and 3 < Count(Temp() within 1 s from {})"


def assigned(text: str, slots: int = 4) -> Layout:
    declared = "event Smoke(area: string, room: string)\nevent Temp(area: string)\nevent Wind(area: string)\n"
    return assign_rules(tocsin.rules(declared + text).plan, slots)


def test_a_rule_whose_events_are_joined_is_keyed() -> None:
    (unit,) = assigned(FIRE).units
    assert (unit.key, unit.slot) == ({"Smoke": "area", "Temp": "area"}, None)
    assert assigned(FIRE, slots=1).units[0].slot == 0


def test_a_rule_is_placed_if_its_anchor_is_needed_elsewhere() -> None:
    """Otherwise the anchor would match in the slot of its key and in the slot of the other rule."""
    units = assigned(FIRE + COUNT.format("Smoke", "Smoke")).units_by_rule
    assert (units["Fire"].key, units["Crowd"].key) == (None, None)


def test_events_other_than_anchors_can_go_to_several_slots() -> None:
    units = assigned(FIRE + COUNT.format("Wind", "Wind")).units_by_rule
    assert units["Fire"].key is not None
    assert units["Crowd"].key is None


def test_rules_of_one_event_follow_the_keys_of_others() -> None:
    alone = "define Alarm(room: string, area: string) from Smoke() where room = Smoke.room, area = Smoke.area "
    units = assigned(alone + FIRE).units_by_rule
    assert units["Alarm"].key == {"Smoke": "area"}
    assert units["Fire"].key == {"Smoke": "area", "Temp": "area"}


def test_two_keys_of_one_anchor() -> None:
    other = "define Other() from Smoke(room = $r) and last Wind(area = $r) within 1 s from Smoke "
    assert [unit.key for unit in assigned(FIRE + other).units] == [None, None]


def crowds(*types: str, within: str = "1 s") -> str:
    return "".join(
        f"define C{number}() from {type}() and 3 < Count(Temp() within {within} from {type}) "
        for number, type in enumerate(types)
    )


def test_placed_rules_are_spread_with_little_duplication() -> None:
    """Four rules on two slots: those that read Smoke in one, those that read Wind in the other."""
    units = assigned(crowds("Smoke", "Wind", "Smoke", "Wind"), slots=2).units_by_rule
    assert units["C0"].slot == units["C2"].slot != units["C1"].slot == units["C3"].slot


def test_the_placer_is_a_setting() -> None:
    declared = "event Smoke(area: string)\nevent Temp(area: string)\n"
    plan = tocsin.rules(declared + crowds("Smoke", "Smoke", "Smoke", "Smoke")).plan
    loads = Counter(unit.slot for unit in assign_rules(plan, 2).units)
    together = Counter(unit.slot for unit in assign_rules(plan, 2, placer=Sctxpf()).units)
    assert sorted(loads.values()) == [2, 2]
    assert sorted(together.values()) == [4]


def test_a_layout_is_the_same_for_the_same_rules() -> None:
    text = crowds("Smoke", "Wind", "Smoke", "Wind", "Smoke")
    assert assigned(text).digest == assigned(text).digest
