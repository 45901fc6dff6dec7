"""All rows, in the order in which they are asked."""

from typing import Final

from odd_requests.consumers import CLIENTS, OFFSETS, QUERIES
from odd_requests.operators import ADMIN, NAMES
from odd_requests.pulls import PULLS
from odd_requests.sends import SENDS, TRANSACTIONS

ROWS: Final = (*PULLS, *SENDS, *OFFSETS, *QUERIES, *CLIENTS, *TRANSACTIONS, *ADMIN, *NAMES)
SETTINGS: Final = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
}
