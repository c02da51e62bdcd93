"""What does a user read who made a mistake? Every message as a golden file, and never a traceback of anything else.

A wrong rule is shown as its text, a wrong use or a wrong event as the Python that a user would write.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pyarrow as pa
import pytest

import tocsin
from tocsin.errors import TocsinError
from tocsin.events.notation import read_events
from tocsin.events.types import Event
from tocsin.language.builder import define, event, within

Golden = Callable[[str, str], None]

DECLARED = "event Smoke(area: string)\nevent Temp(area: string, value: double, good: bool, at: timestamp)\n"

WRONG_RULES = {
    "type_unknown": DECLARED + "define Fire() from Smoke() and last Tmep() within 5 min from Smoke",
    "type_unknown_anchor": DECLARED + "define Fire() from Steam()",
    "type_unknown_negated": DECLARED + "define Fire() from Smoke() and not Rain() within 5 min from Smoke",
    "attribute_unknown": DECLARED + "define Fire() from Temp(valeu > 45)",
    "attribute_unknown_in_where": DECLARED + "define Fire(t: double)\nfrom Temp()\nwhere t = Temp.temperature",
    "attribute_unknown_in_aggregate": DECLARED
    + "define Fire()\nfrom Smoke()\n     and 45 < Avg(Temp().heat within 5 min from Smoke)",
    "attribute_unknown_of_composite": "define Fire(area: string) from Smoke() where area = Smoke.area\n"
    'define Alarm() from Fire(aera = "A1")',
    "attribute_of_an_event_without_any": "event Tick()\ndefine Fire() from Tick(n > 1)",
    "clash_in_comparison": DECLARED + 'define Fire() from Temp(value > "hot")',
    "clash_in_comparison_of_parameter": DECLARED
    + "define Fire()\nfrom Smoke(area = $a)\n     and last Temp(value = $a) within 5 min from Smoke",
    "clash_in_comparison_of_time": DECLARED + "define Fire() from Temp(at > 5)",
    "clash_in_comparison_of_booleans": DECLARED + "define Fire() from Temp(good > false)",
    "clash_in_arithmetic": DECLARED + "define Fire() from Temp(value + area > 3)",
    "clash_in_arithmetic_of_times": DECLARED + "define Fire() from Temp(at + ts > at)",
    "clash_in_where": DECLARED + "define Fire(area: string)\nfrom Temp()\nwhere area = Temp.value",
    "clash_in_where_narrowing": DECLARED + "define Fire(n: int)\nfrom Temp()\nwhere n = Temp.value",
    "clash_in_aggregate_test": DECLARED
    + 'define Fire()\nfrom Smoke()\n     and "45" < Avg(Temp().value within 5 min from Smoke)',
    "constraint_not_a_truth": DECLARED + "define Fire() from Temp(value)",
    "parameter_unbound_in_selection": "define Fire()\nfrom Smoke(area = $a)\n"
    "     and last Temp(value > $v) within 5 min from Smoke",
    "parameter_unbound_in_negation": "define Fire()\nfrom Smoke(area = $a)\n"
    "     and not Rain(area = $b) within 5 min from Smoke",
    "parameter_unbound_in_aggregate": "define Fire()\nfrom Smoke()\n"
    "     and 3 < Count(Temp(area = $a) within 5 min from Smoke)",
    "parameter_unbound_in_where": "define Fire(area: string)\nfrom Smoke(area = $area)\nwhere area = $aera",
    "parameter_used_before_it_is_bound": "define Fire()\nfrom Smoke(level > $v)\n"
    "     and last Temp(value = $v) within 5 min from Smoke",
    "parameter_bound_under_or": 'define Fire() from Smoke(area = $a or area = "B")',
    "cycle": "define Fire() from Alarm()\ndefine Alarm() from Siren()\ndefine Siren() from Fire()",
    "cycle_of_one": "define Fire() from Smoke() and last Fire() within 5 min from Smoke",
    "cycle_through_negation": "define Fire() from Smoke() and not Alarm() within 5 min from Smoke\n"
    "define Alarm() from Fire()",
    "window_negative": "define Fire() from Smoke() and last Temp() within -5 min from Smoke",
    "window_zero": "define Fire() from Smoke() and last Temp() within 0 s from Smoke",
    "between_in_the_wrong_order": "define Fire()\nfrom Smoke()\n     and last Temp() within 5 min from Smoke\n"
    "     and not Rain() between Smoke and Temp",
    "between_an_event_and_itself": "define Fire()\nfrom Smoke()\n     and not Rain() between Smoke and Smoke",
    "alias_twice": "define Fire()\nfrom Smoke() as s\n     and last Temp() as s within 5 min from s",
    "alias_is_a_type": "define Fire()\nfrom Smoke()\n     and last Temp() as Smoke within 5 min from Smoke",
    "type_twice_without_alias": "define Fire()\nfrom Temp(value > 45)\n"
    "     and last Temp(value < 10) within 5 min from Temp",
    "role_unknown_in_scope": "define Fire()\nfrom Smoke()\n     and last Temp() within 5 min from Smok",
    "role_unknown_in_between": "define Fire()\nfrom Smoke()\n     and last Temp() within 5 min from Smoke\n"
    "     and not Rain() between Tmp and Smoke",
    "role_unknown_in_where": "define Fire(t: double)\nfrom Smoke()\nwhere t = Temp.value",
    "role_unknown_in_consuming": "define Fire()\nfrom Smoke()\n     and last Temp() within 5 min from Smoke\n"
    "consuming Tempp",
    "role_negated_in_where": "define Fire(area: string)\nfrom Smoke()\n"
    "     and not Rain() within 5 min from Smoke\nwhere area = Rain.area",
    "role_not_named_yet": "define Fire()\nfrom Smoke()\n     and last Temp() within 5 min from Wind\n"
    "     and last Wind() within 5 min from Smoke",
    "role_its_own_origin": "define Fire()\nfrom Smoke()\n     and last Temp() within 5 min from Temp",
    "role_called_by_type_despite_alias": "define Fire()\nfrom Smoke() as s\n     and last Temp() within 5 min from Smoke",
    "role_in_constraint": "define Fire()\nfrom Smoke()\n     and last Temp(area = Smoke.area) within 5 min from Smoke",
    "where_value_missing": "define Fire(area: string, temp: double)\nfrom Smoke()\nwhere area = Smoke.area",
    "where_missing": "define Fire(area: string)\nfrom Smoke()",
    "where_value_twice": "define Fire(area: string)\nfrom Smoke()\nwhere area = Smoke.area, area = Smoke.zone",
    "where_attribute_unknown": "define Fire(area: string)\nfrom Smoke()\nwhere area = Smoke.area, aera = Smoke.area",
    "where_whose_attribute": "define Fire(area: string)\nfrom Smoke()\nwhere area = area",
    "attribute_reserved": "define Fire(ts: timestamp)\nfrom Smoke()\nwhere ts = Smoke.ts",
    "rules_of_one_name": "rule R define Fire() from Smoke()\nrule R define Alarm() from Bell()",
    "type_defined_in_two_ways": "define Fire(area: string) from Smoke() where area = Smoke.area\n"
    "define Fire(zone: string) from Temp() where zone = Temp.zone",
    "attribute_of_two_kinds": "define Fire(n: string) from Smoke() where n = Smoke.area\n"
    "define Alarm(n: double) from Temp() where n = Temp.value",
    "aggregate_parameter_bound_already": "define Fire()\nfrom Smoke(area = $t)\n"
    "     and $t = Avg(Temp().value within 5 min from Smoke)",
    "aggregate_sum_of_strings": DECLARED + "define Fire()\nfrom Smoke()\n"
    "     and 3 < Sum(Temp().area within 5 min from Smoke)",
    "aggregate_without_attribute": "define Fire()\nfrom Smoke()\n     and 45 < Avg(Temp() within 5 min from Smoke)",
    "aggregate_bound_is_an_attribute": "define Fire()\nfrom Smoke()\n"
    "     and limit < Avg(Temp().value within 5 min from Smoke)",
    "declared_type_defined": "event Fire(area: string)\nevent Smoke()\ndefine Fire() from Smoke()",
    "stray_character": "define Fire() from Smoke(area ? 3)",
    "string_without_end": 'define Fire()\nfrom Smoke(area = "A1)\n',
    "text_empty": "",
    "text_of_a_comment": "-- (nothing yet)",
    "text_of_declarations": "event Smoke(area: string)",
}


@pytest.mark.parametrize("name", WRONG_RULES)
def test_a_wrong_rule(name: str, golden: Golden) -> None:
    text = WRONG_RULES[name]
    with pytest.raises(TocsinError) as caught:
        tocsin.rules(text)
    golden(f"mistakes/{name}.txt", f"{text}\n---\n{caught.value}\n")


RULE = """\
define Fire(area: string, temp: double)
from   Smoke(area = $a)
       and last Temp(area = $a, value > 45) within 5 min from Smoke
where  area = $a, temp = Temp.value"""
TYPED = f"""\
event Smoke(area: string)
event Temp(area: string, value: double)
{RULE}"""

WRONG_CALLS = {
    "file_missing": 'tocsin.rules("no/such/rules.tesla")',
    "file_not_text": 'open("rules.tesla", "wb").write(b"define Fire\\xff() from Smoke()")\ntocsin.rules("rules.tesla")',
    "rule_of_the_builder": 'tocsin.rules([define("Fire").from_(event("Smoke")).last(event("Temp"), within("5 min", "Smok")).build()])',
    "column_missing_for_a_rule": 'rules.detect(pa.table({"type": ["Temp"], "ts": [1], "area": ["A1"], "vlaue": [50.0]}))',
    "column_missing_in_a_mapping": 'rules.detect({"Smoke": pa.table({"ts": [1], "area": ["A1"]}), '
    '"Temp": pa.table({"ts": [1], "value": [3.0]})})',
    "column_of_the_wrong_kind_for_a_rule": 'rules.detect(pa.table({"type": ["Temp"], "ts": [1], "area": ["A1"], "value": ["hot"]}))',
    "column_that_is_no_attribute": 'rules.detect(pa.table({"type": ["Temp"], "ts": [1], "area": [["A1"]], "value": [1.0]}))',
    "column_twice": 'rules.detect(pa.table([["Temp"], [1], ["A1"], ["B1"]], names=["type", "ts", "area", "area"]))',
    "ts_column_missing": 'rules.detect(pa.table({"type": ["Temp"], "time": [1], "area": ["A1"], "value": [50.0]}))',
    "type_column_missing": 'rules.detect(pa.table({"Type": ["Temp"], "ts": [1], "area": ["A1"], "value": [50.0]}))',
    "type_column_of_numbers": 'rules.detect(pa.table({"type": [7], "ts": [1], "area": ["A1"], "value": [50.0]}))',
    "ts_null": 'detector.push(pa.table({"type": ["Temp", "Smoke"], "ts": [None, 2], "area": ["A1", "A1"], "value": [50.0, None]}))',
    "ts_all_null": 'detector.push(pa.table({"type": ["Temp"], "ts": [None], "area": ["A1"], "value": [50.0]}))',
    "ts_null_among_times_in_seconds": "detector.push(pa.table({"
    '"type": ["Temp", "Smoke"], "ts": [None, 1_700_000_000], "area": ["A1", "A1"], "value": [50.0, None]}))',
    "ts_in_seconds": 'detector.push(pa.table({"type": ["Temp"], "ts": [1_700_000_000], "area": ["A1"], "value": [50.0]}))',
    "ts_in_milliseconds": "detector.push(pa.table({"
    '"type": ["Temp"], "ts": [1_700_000_000_000], "area": ["A1"], "value": [50.0]}))',
    "ts_in_seconds_of_events": 'detector.push([Event("Temp", 1_700_000_000, {"area": "A1", "value": 50.0})])',
    "ts_of_doubles": 'detector.push(pa.table({"type": ["Temp"], "ts": [1.5], "area": ["A1"], "value": [50.0]}))',
    "ts_of_words": 'detector.push(pa.table({"type": ["Temp", "Smoke"], "ts": ["2024-01-01T10:00:00Z", "noon"], '
    '"area": ["A1", "A1"], "value": [50.0, None]}))',
    "ts_out_of_range": 'detector.push(pa.table({"type": ["Temp"], "ts": [2**62], "area": ["A1"], "value": [50.0]}))',
    "ts_out_of_range_of_an_event": 'detector.push([Event("Temp", 2**70, {"area": "A1"})])',
    "ts_of_an_event_is_a_word": 'detector.push([Event("Temp", "noon", {"area": "A1"})])',
    "ts_unit_unknown": 'rules.detect(pa.table({"type": ["Temp"], "ts": [1], "area": ["A1"], "value": [1.0]}), ts_unit="min")',
    "type_null": 'detector.push(pa.table({"type": [None, "Smoke"], "ts": [1, 2], "area": ["A1", "A1"], "value": [50.0, None]}))',
    "id_null": 'detector.push(pa.table({"type": ["Temp", "Smoke"], "ts": [1, 2], "id": ["e1", None], '
    '"area": ["A1", "A1"], "value": [50.0, None]}))',
    "id_of_doubles": 'detector.push(pa.table({"type": ["Temp"], "ts": [1], "id": [1.5], "area": ["A1"], "value": [5.0]}))',
    "id_of_some_events": 'detector.push([Event("Temp", 1, {"area": "A1", "value": 50.0}, id="t1"), Event("Smoke", 2, {"area": "A1"})])',
    "id_of_some_events_of_a_type": "detector.push([\n"
    '    Event("Temp", 1, {"area": "A1", "value": 50.0}, id="t1"),\n'
    '    Event("Temp", 2, {"area": "A1", "value": 51.0}),\n])',
    "id_only_in_later_batches": 'detector.push([Event("Temp", 1, {"area": "A1", "value": 50.0})])\n'
    'detector.push([Event("Smoke", 2, {"area": "A1"}, id="s1")])',
    "seq_of_words": 'rules.detect(pa.table({"type": ["Temp"], "ts": [1], "seq": ["a"], "area": ["A1"], "value": [5.0]}))',
    "nan_in_the_notation": 'read_events(\'Smoke@1(area="A1")\\nTemp@2(area="A1", value=NaN)\')',
    "notation_broken": "read_events('Smoke@1(area=A1)')",
    "notation_without_time": "read_events('Smoke(area=\"A1\")')",
    "nan_in_a_column": 'detector.push(pa.table({"type": ["Temp", "Temp", "Smoke"], "ts": [1, 2, 3], '
    '"area": ["A1", "A1", "A1"], "value": [50.0, float("nan"), None]}))',
    "infinity_in_a_column": 'detector.push(pa.table({"type": ["Temp", "Smoke"], "ts": [1, 2], '
    '"area": ["A1", "A1"], "value": [float("inf"), None]}))',
    "nan_in_an_event": 'detector.push([Event("Temp", 1, {"area": "A1", "value": float("nan")}), Event("Smoke", 2, {"area": "A1"})])',
    "value_of_the_wrong_kind": "detector = typed.detector()\ndetector.push(pa.table({"
    '"type": ["Temp", "Temp", "Smoke"], "ts": [1, 2, 3], "area": ["A1"] * 3, "value": ["50", "hot", None]}))',
    "value_of_the_wrong_kind_in_an_event": "detector = typed.detector()\n"
    'detector.push([Event("Temp", 1, {"area": "A1", "value": "hot"}), Event("Smoke", 2, {"area": "A1"})])',
    "value_of_the_wrong_kind_later": 'detector.push([Event("Temp", 1, {"area": "A1", "value": 50.0})])\n'
    'detector.push([Event("Temp", 2, {"area": "A1", "value": "hot"})])',
    "value_of_two_kinds_in_events": "detector.push([\n"
    '    Event("Temp", 1, {"area": "A1", "value": 50.0}),\n'
    '    Event("Temp", 2, {"area": "A1", "value": "hot"}),\n])',
    "value_that_is_no_attribute": 'detector.push([Event("Temp", 1, {"area": ["A1"]})])',
    "value_beyond_64_bits": 'detector.push([Event("Temp", 1, {"area": "A1", "value": 2**70})])',
    "event_that_a_rule_defines": 'detector.push(pa.table({"type": ["Fire", "Temp"], "ts": [1, 2], "area": ["A1", "A1"], "value": [1.0, 2.0]}))',
    "event_that_a_rule_defines_in_a_mapping": 'detector.push({"Fire": pa.table({"ts": [1], "area": ["A1"]})})',
    "event_that_a_rule_defines_as_an_event": 'detector.push([Event("Fire", 1, {"area": "A1", "temp": 50.0})])',
    "event_late": "detector.push(read_events('Smoke@10s(area=\"A1\")'))\n"
    "detector.push(read_events('Temp@9s(area=\"A1\", value=50.0)'))",
    "event_late_within_a_batch": "detector = rules.detector(delay='1 s')\n"
    'detector.push(read_events(\'Smoke@10s(area="A1")\\nTemp@9s(area="A1", value=50.0)\\nTemp@8s#3[t7](area="A1", value=51.0)\'))',
    "event_late_among_equals": "detector = rules.detector(ordered=True)\n"
    'detector.push(read_events(\'Temp@1(area="B", value=50.0)\\nTemp@1(area="A", value=50.0)\\nTemp@1(area="C", value=50.0)\'))',
    "event_late_in_an_ordered_source": "detector = rules.detector(ordered=True)\n"
    'detector.push(read_events(\'Temp@2(area="B", value=50.0)\\nTemp@1(area="A", value=50.0)\'))',
    "warning_of_detect": 'rules.detect(pa.table({"type": ["Temp", None], "ts": [None, 2], "area": ["A1", "A1"], "value": [5.0, 6.0]}))',
    "not_events": "detector.push(42)",
    "not_events_in_a_list": 'detector.push([{"type": "Temp", "ts": 1}])',
    "not_events_but_text": "detector.push('Temp@1(area=\"A1\", value=50.0)')",
    "not_events_but_none": "detector.push(None)",
    "not_tables_in_a_mapping": 'detector.push({"Temp": [1, 2, 3]})',
    "mapping_of_nothing": "detector.push({})",
    "snapshot_damaged": "snapshot = bytearray(detector.snapshot())\nsnapshot[-5] ^= 1\nrules.restore(bytes(snapshot))",
    "snapshot_cut": "rules.restore(detector.snapshot()[:-100])",
    "snapshot_cut_in_its_head": "rules.restore(detector.snapshot()[:8])",
    "snapshot_of_another_version": "snapshot = detector.snapshot()\nrules.restore(snapshot[:6] + b'\\x63\\0' + snapshot[8:])",
    "snapshot_of_nothing": "rules.restore(b'')",
    "snapshot_that_is_none": "rules.restore(b'PAR1 or some other file')",
    "snapshot_of_other_types": "snapshot = typed.detector().snapshot()\n"
    "tocsin.rules('event Smoke(area: long)\\ndefine Fire() from Smoke()').restore(snapshot)",
    "delay_of_an_unknown_unit": 'rules.detector(delay="5 parsecs")',
    "delay_negative": "rules.detector(delay=-1)",
    "delay_negative_text": 'rules.detector(delay="-5 s")',
    "delay_and_order": 'rules.detector(delay="5 s", ordered=True)',
    "delay_that_is_none": "rules.detector(delay=None)",
    "delay_that_is_not_finite": 'rules.detector(delay=float("nan"))',
    "keys_null": 'detector.push(pa.table({"type": ["Temp", "Smoke", "Temp", "Smoke"], "ts": [1, 2, 3, 4], '
    '"area": [None, None, "A1", "A1"], "value": [50.0, None, 51.0, None]}))',
    "advance_to_a_word": 'detector.advance("noon")',
    "rule_added_too_early": 'detector.push(read_events(\'Smoke@10(area="A1")\'))\ndetector.add("define Alarm() from Smoke()", at=5)',
    "rule_added_twice": 'detector.add("define Fire() from Smoke()")',
    "rule_added_that_is_wrong": 'detector.add("define Alarm() from Smoke(area > $x)")',
    "rule_removed_that_is_unknown": 'detector.remove(["Fier"])',
    "rule_removed_that_others_use": "detector = tocsin.rules(\n"
    "    'event Smoke()\\ndefine Fire() from Smoke()\\ndefine Alarm() from Fire()'\n).detector()\n"
    'detector.remove(["Fire"])',
    "language_unknown": 'tocsin.rules("define Fire() from Smoke()", language="tesle")',
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_or_event(name: str, golden: Golden, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    golden(f"mistakes/{name}.txt", f"{WRONG_CALLS[name]}\n---\n{outcome(WRONG_CALLS[name])}\n")


def outcome(code: str) -> str:
    """What the code ends in: the message of a `TocsinError`; or else dead letters, warnings and matches."""
    rules, typed = tocsin.rules(RULE), tocsin.rules(TYPED)
    names = {
        "tocsin": tocsin,
        "pa": pa,
        "Event": Event,
        "read_events": read_events,
        "define": define,
        "event": event,
        "within": within,
        "rules": rules,
        "typed": typed,
        "detector": rules.detector(),
    }
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            exec(code, names)
        except TocsinError as error:
            return str(error)
    if warned:
        return "\n".join(f"{type(warning.message).__name__}: {warning.message}" for warning in warned)
    detector = names["detector"]
    assert isinstance(detector, tocsin.Detector)
    detector.finish()
    counts = detector.counts
    lines = [f"{letter['reason']}: {letter['event']}" for letter in detector.dead_letters().to_pylist()]
    assert counts["dead"] == len(lines)
    return "\n".join([*lines, f"{len(lines)} dead, {counts['late']} late, {counts['matches']} matches"])
