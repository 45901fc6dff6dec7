"""The console's background jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from waiting import until

from aerobee.client.console.jobs import Jobs
from aerobee.client.errors import NotFound


async def steps(error: Exception) -> AsyncIterator[str | None]:
    yield None
    yield "it is too large"
    raise error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotFound("there is no topic"), "there is no topic"),
        (KeyError("body"), "this is a bug of the console, see its log: KeyError: 'body'"),
    ],
)
async def test_a_job_that_fails_says_why_and_does_not_run_for_ever(
    error: Exception, text: str
) -> None:
    job = Jobs().start("replay of g", 3, steps(error))
    await until(lambda: job.state != "running", 20)
    assert (job.state, job.error) == ("failed", text)
    assert (job.done, job.refused) == (2, ["it is too large"])
