"""Request codes about replicas that are ours; docs/protocol-extensions.md has them."""

from typing import Final

PROMOTE: Final = 20120
GET_ACCESS: Final = 20121
