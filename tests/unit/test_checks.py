"""Outcomes of a slice's checks: rules of the contract by share, rules of the table at the first failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lineage_assets.lineage.fates import Balance, Fate
from lineage_assets.lineage.offsets import OffsetRange
from lineage_assets.lineage.record import CheckOutcome
from lineage_assets.quality.checks import Failing, Tally, declared, outcomes
from lineage_assets.quality.contract import TYPE, Column, Contract, Rule

GE = Rule("amount__ge", "amount", "ge", "amount: ge(0)")
TYPED = Rule("amount__type", "amount", TYPE, "amount: expected bigint", max_share=0.0)
SOFT = Rule("email__format", "email", "format", "email: format(email)", severity="WARN", max_share=0.01)
CONTRACT = Contract(
    "Click",
    (Column("amount", "amount", "bigint", rules=(TYPED, GE)), Column("email", "email", "string", rules=(SOFT,))),
)
EMPTY = Tally({0: OffsetRange(5, 5)}, {}, {}, Balance({}))


def tally(ok: int = 100, dead: int = 0, reason: str = "", **more: object) -> Tally:
    fates = {0: {Fate.ok: ok, Fate.dead: dead}}
    examples = tuple(f"clicks/0@{offset}" for offset in range(min(dead, 3)))
    reasons = {reason: Failing(dead, examples)} if reason else {}
    whole = Tally({0: OffsetRange(0, ok + dead)}, fates, reasons, Balance({}))
    return replace(whole, **more)  # type: ignore[arg-type]


def outcome(name: str, counted: Tally, unique_by: tuple[str, ...] = ()) -> CheckOutcome:
    return next(one for one in outcomes(CONTRACT, counted, unique_by) if one.name == name)


def test_a_rule_that_no_record_broke_passes() -> None:
    found = outcome("amount__ge", tally(ok=100))
    assert (found.passed, found.failed, found.total, found.examples) == (True, 0, 100, ())


def test_a_rule_warns_above_zero_and_up_to_its_share_included() -> None:
    for dead in (1, 5):
        found = outcome("amount__ge", tally(ok=100 - dead, dead=dead, reason="amount: ge(0)"))
        assert (found.passed, found.severity, found.failed, found.total) == (False, "WARN", dead, 100)


def test_a_rule_is_an_error_that_blocks_above_its_share() -> None:
    found = outcome("amount__ge", tally(ok=94, dead=6, reason="amount: ge(0)"))
    assert (found.passed, found.severity, found.blocking) == (False, "ERROR", True)


def test_each_rule_has_its_own_share() -> None:
    found = outcome("amount__type", tally(ok=99, dead=1, reason="amount: expected bigint, got STRING"))
    assert (found.passed, found.severity, found.failed) == (False, "ERROR", 1)


def test_a_soft_rule_never_becomes_an_error() -> None:
    found = outcome("email__format", tally(ok=100, reasons={"email: format(email)": Failing(90)}))
    assert (found.passed, found.severity, found.failed, found.total) == (False, "WARN", 90, 100)
    assert outcome("email__format", tally()).severity == "WARN"


def test_the_share_is_of_the_records_that_the_contract_was_asked_about() -> None:
    fates = {0: {Fate.ok: 90, Fate.duplicate: 4, Fate.tombstone: 900}, 1: {Fate.dead: 6}}
    found = outcome("amount__ge", tally(fates=fates, reasons={"amount: ge(0)": Failing(6)}))
    assert (found.total, found.severity) == (100, "ERROR")


def test_records_that_could_not_be_decoded_count_for_one_rule_of_their_own() -> None:
    reasons = {"decode: no magic byte": Failing(3, ("clicks/0@7",)), "decode: empty value": Failing(2, ("clicks/0@1",))}
    counted = tally(ok=95, dead=5, reasons=reasons)
    found = outcome("decodable", counted)
    assert (found.passed, found.severity, found.failed, found.examples) == (
        False, "WARN", 5, ("clicks/0@1", "clicks/0@7")
    )  # fmt: skip
    assert outcome("amount__ge", counted).passed
    assert outcome("decodable", tally(ok=94, dead=6, reason="decode: empty value")).severity == "ERROR"


def test_examples_are_the_first_three_by_place_in_the_topic() -> None:
    places = tuple(f"clicks/0@{offset}" for offset in (9, 10, 11))
    reasons = {
        "amount: expected bigint, got STRING": Failing(5, places),
        "amount: expected bigint, got OBJECT": Failing(1, ("clicks/0@2",)),
    }
    found = outcome("amount__type", tally(reasons=reasons))
    assert found.failed == 6
    assert found.examples == ("clicks/0@2", "clicks/0@9", "clicks/0@10")


def test_an_empty_slice_passes_every_check() -> None:
    assert all(one.passed for one in outcomes(CONTRACT, EMPTY, ("id",)))


@pytest.mark.parametrize(
    ("name", "fault", "failed"),
    [
        ("conservation", {"balance": Balance({0: 2})}, 2),
        ("conservation", {"balance": Balance({0: -3})}, 3),
        ("conservation", {"balance": Balance({0: 2, 1: -2})}, 4),
        ("conservation", {"lost": {0: (OffsetRange(0, 7),)}}, 7),
        ("unique_offsets", {"repeated_offsets": Failing(1, ("clicks/0@3",))}, 1),
        ("known_schemas", {"foreign_schemas": (12, 13)}, 2),
    ],
)
def test_a_rule_of_the_table_is_an_error_at_the_first_failure(name: str, fault: dict[str, object], failed: int) -> None:
    assert outcome(name, tally()).passed
    found = outcome(name, tally(**fault))  # type: ignore[arg-type]
    assert (found.passed, found.severity, found.blocking, found.failed) == (False, "ERROR", True, failed)


def test_keys_in_two_partitions_are_told_and_block_nothing() -> None:
    found = outcome("one_partition_a_key", tally(keys_in_two_partitions=2), ("id",))
    assert (found.passed, found.severity, found.blocking, found.failed, found.total) == (False, "WARN", False, 2, 100)
    assert "one_partition_a_key" not in {one.name for one in outcomes(CONTRACT, tally(), ())}


@pytest.mark.parametrize("unique_by", [(), ("id",)])
def test_every_declared_check_has_an_outcome_and_the_other_way_round(unique_by: tuple[str, ...]) -> None:
    told = outcomes(CONTRACT, tally(), unique_by)
    known = declared(CONTRACT, unique_by)
    assert [one.name for one in known] == [one.name for one in told]
    assert [one.blocking for one in known] == [one.blocking for one in told]
    assert all(one.description for one in known)
