"""Hosts and times of the records that tests write."""

from __future__ import annotations

BASE_MS = 1_700_000_000_000
V4 = bytes([10, 1, 2, 3, 0, 0, 0x13, 0x88])
V6 = bytes.fromhex("20010db8000000000000000000000001") + bytes([0, 0, 0x13, 0x88])
