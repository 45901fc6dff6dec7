"""What the parts of one client share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerobee.client.producing.sender import Sender
from aerobee.client.transport.presence import Presence
from aerobee.client.transport.remoting import Remoting
from aerobee.client.transport.routes import Routes

if TYPE_CHECKING:
    from aerobee.client.telemetry import Telemetry


@dataclass(slots=True)
class Core:
    """Connections, routes, heartbeats and sending of one client."""

    client_id: str
    timeout: float
    remoting: Remoting
    routes: Routes
    presence: Presence
    sender: Sender
    telemetry: Telemetry | None = None
