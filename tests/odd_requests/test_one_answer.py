"""Odd requests are answered alike on the fast path and on the general one."""

from pathlib import Path

from peers.aerobee_broker import AerobeeBroker

from odd_requests.asked import Asked
from odd_requests.pulls import PULLS
from odd_requests.rows import SETTINGS
from odd_requests.sends import SENDS


def test_the_fast_path_answers_odd_requests_as_the_general_one(tmp_path: Path) -> None:
    """A header with spaces takes the general path, one without the fast path where possible."""
    with (
        AerobeeBroker(tmp_path / "fast", **SETTINGS) as fast,
        AerobeeBroker(tmp_path / "general", **SETTINGS) as general,
    ):
        one = Asked(fast.broker, fast.namesrv, compact=True)
        other = Asked(general.broker, general.namesrv, compact=False)
        for row in (*PULLS, *SENDS):
            found, wanted = one.answers(row), other.answers(row)
            assert [seen[:2] for seen in found] == [seen[:2] for seen in wanted], row.name
        assert "Traceback" not in fast.log() + general.log()
