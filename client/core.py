"""What the parts of one client share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerobee.client.presence import Presence
from aerobee.client.remoting import Remoting
from aerobee.client.routes import Routes
from aerobee.client.sender import Sender

if TYPE_CHECKING:
    from aerobee.client.consumer import Consumer
    from aerobee.client.transactions import TransactionProducer


@dataclass(slots=True)
class Core:
    """Connections, routes, heartbeats and sending of one client."""

    client_id: str
    timeout: float
    remoting: Remoting
    routes: Routes
    presence: Presence
    sender: Sender
    consumers: dict[str, Consumer] = field(default_factory=dict)
    checks: dict[str, TransactionProducer] = field(default_factory=dict)
