"""A plan is accepted in one spelling only: the one that job and manifest give, number by number."""

import json
import math
from dataclasses import replace

import pytest

from privacy.errors import PeerError
from privacy.pipeline import EncodingPlan, Mode
from privacy.planning import check_encoding, derive_encoding
from privacy.quantise import Rounding
from tests.unit.privacy.test_planning_modes import LOCAL, MANY, NONE, RULES, SEED, SITE, SPEC

RECORDS = replace(LOCAL, mode=Mode.RECORD_DISTRIBUTED, rounding=Rounding.RECORD, local_steps=1)
PLANNED = {
    "records": (replace(RECORDS, noise_multiplier=2.0), RULES),
    "users": (replace(RECORDS, noise_multiplier=2.0, unit="user", max_rows=5), RULES),
    "counts": (
        replace(
            RECORDS,
            noise_multiplier=2.0,
            sampling_rate=1.0,
            metrics_norm=0.0,
            metrics_length=0,
            site_range=1e5,
        ),
        RULES,
    ),
    "surplus": (replace(RECORDS, noise_multiplier=2.0, surplus_up_to=RULES.members), RULES),
    "local": (replace(LOCAL, noise_multiplier=2.0), RULES),
    "site": (replace(SITE, noise_multiplier=4.0), MANY),
    "none": (NONE, RULES),
}


def other_numbers(value):
    """Give values near a field's, and spellings of the same one."""
    if isinstance(value, str):
        return ["record", "user", "site", "none", "plain", "sum", "identity", "rotation", "00" * 32]
    if isinstance(value, list):
        return [None, {}, 0, [0], [[]], value[1:], [*value, {"survivors": 9, "variance": 1}]]
    if isinstance(value, float):
        near = [math.nextafter(value, to) for to in (-math.inf, math.inf)]
        return [*near, value * (1 - 1e-9), value / 2, 2 * value, -value, -0.0, 1e308]
    return [value - 1, value + 1, 2 * value, float(value)]


def spellings(plan):
    """Give the bytes of plans that differ in one number each, with its name."""

    def fields(table, path=()):
        for name, value in table.items() if isinstance(table, dict) else enumerate(table):
            if isinstance(value, list):
                yield (*path, name), value
            if isinstance(value, dict | list):
                yield from fields(value, (*path, name))
            elif value is not None:
                yield (*path, name), value

    for path, value in fields(json.loads(plan.to_bytes())):
        for other in other_numbers(value):
            whole = json.loads(plan.to_bytes())
            table = whole
            for name in path[:-1]:
                table = table[name]
            table[path[-1]] = other
            raw = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
            if raw != plan.to_bytes() and path[-1] != "map_seed":  # the aggregator's to choose
                yield path, raw


def judge(raw, terms, rules, _changed):
    check_encoding(EncodingPlan.from_bytes(raw), terms, SPEC, rules)


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_with_any_number_changed_is_refused_and_the_right_one_is_not(name):
    terms, rules = PLANNED[name]
    terms = terms if terms.mode is Mode.NONE else replace(terms, epsilon=1e4)
    plan = derive_encoding(terms, SPEC, rules, SEED)
    check_encoding(EncodingPlan.from_bytes(plan.to_bytes()), terms, SPEC, rules)
    tried = 0
    for path, raw in spellings(plan):
        tried += 1
        with pytest.raises(PeerError):  # the name shows in a failure's locals
            judge(raw, terms, rules, path)
    assert tried > 60
