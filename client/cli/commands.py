"""Every command of `aerobee` and the module that it is in: a new one is a row here."""

from __future__ import annotations

from typing import Final

# name: (module, attribute, help). The help is here so that `aerobee --help` imports nothing.
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "broker": ("daemons", "broker", "Run a broker (with its name service) in the foreground."),
    "namesrv": ("daemons", "namesrv", "Run a name server alone in the foreground."),
    "send": ("messages", "send", "Send messages."),
    "consume": ("messages", "consume", "Print messages of a topic."),
    "message": ("messages", "message", "Find stored messages by id, key or time."),
    "why": ("why", "why", "Say where a message is, and why a group has it or has it not."),
    "topic": ("topics", "topic", "List, show, create, change and delete topics."),
    "group": ("groups", "group", "List, show, create, change and delete consumer groups."),
    "offsets": ("groups", "offsets", "Show and reset the offsets of a group."),
    "timer": ("timers", "timer", "Look at delayed messages and recall them."),
    "dlq": ("dead_letters", "dlq", "Look at dead letters, replay them and remove them."),
    "user": ("users", "user", "Add, list, change and remove users."),
    "acl": ("users", "acl", "Grant, revoke, show and test the rights of users."),
    "cluster": ("cluster", "cluster", "Show the brokers, their state and their settings."),
    "replicas": ("replicas", "replicas", "Show who has a copy of whose log, and how far behind."),
    "promote": ("replicas", "promote", "Make a slave the master."),
    "ping": ("cluster", "ping", "Measure how fast name servers and brokers answer."),
    "console": ("console", "console", "Show a cluster in the browser."),
    "worker": ("worker", "worker", "Run the handlers of an application."),
    "bench": ("benchmark", "bench", "Send and consume at full speed, and say how fast that was."),
    "doctor": ("doctor", "doctor", "Find the usual troubles and say the remedy."),
    "store": (
        "store",
        "store",
        "Look into a store folder, or copy it: stat, verify, dump, snapshot.",
    ),
    "config": ("daemons", "config", "List every setting with default, unit and meaning."),
    "pipeline": ("daemons", "pipeline", "Run the Spark pipeline's jobs."),
    "install-service": ("daemons", "install_service", "Install the broker as a systemd service."),
    "completion": ("completion", "completion", "Print the shell's completion script."),
}
