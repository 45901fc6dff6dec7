"""Runs of sends that C has parsed: C encodes their records and their answers, too.

Messages that the store does not accept in this form are handled like a run in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, overload

from aerobee.broker.compiled import compiled
from aerobee.broker.fast.send_runs import Mark, Run, SendRuns, Stored
from aerobee.broker.net.answers import SendAnswers, pieces_of
from aerobee.broker.net.outbox import Part
from aerobee.broker.net.requests import failure_text
from aerobee.broker.store.log.facts import Facts, end_of_all
from aerobee.broker.store.results import PutStatus

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot


@lru_cache(maxsize=1024)
def _answers(answers: SendAnswers, id_head: bytes) -> _hot.Answers:
    """`id_head`: the part of message ids with our address; there are few."""
    pieces = pieces_of(answers.json_template(id_head))
    make: type[_hot.Answers] = compiled().Answers
    return make(pieces, partial(answers.form, id_head))


class _Marks(Sequence[Mark]):
    """The marks of a run in C, created only if the store did not accept its messages in C."""

    def __init__(self, run: _hot.Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return len(self.run)

    def __iter__(self) -> Iterator[Mark]:
        return iter(self.run.marks())  # `Sequence` would create all marks for each item

    @overload
    def __getitem__(self, which: int) -> Mark: ...
    @overload
    def __getitem__(self, which: slice) -> list[Mark]: ...
    def __getitem__(self, which: int | slice) -> Mark | list[Mark]:
        return self.run.marks()[which]


class CompiledRuns(SendRuns):
    """The runs of one connection that C has parsed."""

    def put_encoded(self, run: _hot.Run, started: float, out: list[Part]) -> None:
        """As `put`, with fewer steps if the store accepts all messages."""
        facts: Facts = []
        failure = ""
        try:
            facts = self._store.put_rows(run)
        except Exception as error:
            failure = failure_text(run.code, self._connection, error)
        count = len(run)
        if len(facts) < count or run.encoded < count:
            one = run.codec, run.code, started
            self.put_rest(one, run, _Marks(run), facts, failure, out)
            return
        # `_count`, inlined.
        if not isinstance(facts, list) and (alike := facts.size_if_alike()) is not None:
            self._stats.add_put(alike[0], count, alike[1], count)
        else:
            super()._count(facts)
        if run.waits:
            self._wait_encoded(run, started, end_of_all(facts))
            return
        if answers := run.answers(_answers(self._sends.answers, self.id_head)):
            out.append(answers)
        self._latencies[run.code].add_many(perf_counter() - started, count)

    def _wait_encoded(self, run: _hot.Run, started: float, end: int) -> None:
        """As `_wait`, with the data of the answers kept in C."""
        run.settle()
        self._connection.waits_begin(len(run))
        self._store.when_durable(end, partial(self._durable_encoded, run, started))

    def _durable_encoded(self, run: _hot.Run, started: float, status: PutStatus) -> None:
        if status is not PutStatus.PUT_OK:
            self._durable((run.codec, run.code, started), run.stored(), status)
            return
        count = len(run)
        self._latencies[run.code].add_many(perf_counter() - started, count)
        self._connection.waits_end(count)
        if answers := run.answers(_answers(self._sends.answers, self.id_head)):
            self._connection.write((answers,))

    def _answer_rows(
        self,
        run: Run,
        marks: Sequence[Mark],
        facts: Facts,
        out: list[Part],
        waiting: list[Stored],
    ) -> None:
        if not isinstance(marks, _Marks) or marks.run.encoded != len(facts):
            super()._answer_rows(run, marks, facts, out, waiting)
        elif marks.run.waits:
            waiting += marks.run.stored()
        elif answers := marks.run.answers(_answers(self._sends.answers, self.id_head)):
            out.append(answers)

    def _stored_answers(self, run: Run, waiting: list[Stored]) -> list[Part]:
        made = compiled().answers_of(run[0], waiting, _answers(self._sends.answers, self.id_head))
        if made is None:
            return super()._stored_answers(run, waiting)
        return [made] if made else []

    def _count(self, facts: Facts) -> None:
        if not isinstance(facts, list) and (alike := facts.size_if_alike()) is not None:
            count = len(facts)
            self._stats.add_put(alike[0], count, alike[1], count)
        else:
            super()._count(facts)
