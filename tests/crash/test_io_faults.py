"""A share of the faults of `make iofaults`, and that its checks can fail."""

from __future__ import annotations

import pytest
from crash.io_faults import FOR_EVER, Case, Site, cases, find_sites, try_case

from aerobee.broker.base.reports import Reports


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_failed_disk_call_breaks_no_promise_and_is_reported_once() -> None:
    sites = find_sites()
    assert len(sites) > 80, "the script does not reach what it did"
    assert {"timer_log", "json_file", "flush_log"} <= {each.caller.split(".")[0] for each in sites}
    # Prime to what the list is made of: calls, errors and durations take turns.
    chosen = list(cases(sites))[::43]
    wrong = {str(case): problems for case in chosen if (problems := try_case(case)[0])}
    assert not wrong


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_an_error_that_is_not_reported_or_reported_in_every_round_is_found() -> None:
    """The check itself must catch both, planted."""
    case = Case(Site("write", "timer_log.TimerLog._write_at", "timerlog"), "EIO", FOR_EVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reports, "log", lambda *_args, **_fields: None)
        assert any("told to nobody" in text for text in try_case(case)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aerobee.broker.base.reports.INTERVAL_S", 0.0)
        patch.setattr("aerobee.broker.services.redelivery.rounds.FAILED_RETRY_S", 0.01)
        assert any("said" in text for text in try_case(case)[0])
    assert try_case(case) == ([], True)
