"""What an answer of `why` says about a group."""

from __future__ import annotations

from aerobee import GroupVerdict, Why


def verdict_for(answer: Why, group: str) -> GroupVerdict:
    found = answer.of(group)
    assert found is not None, answer.as_dict()
    return found
