"""Where our answer differs from RocketMQ's on purpose, each row with its reason.

docs/migration.md says the same to users. What safety does not need is not refused.
"""

from typing import Final

_NAMES = "names become keys and folders: they are checked before anything is made of them"
_OWN = "the broker acts on what its own topics hold: a client could forge timers or batches"
_FILTER = "a filter that cannot be read would let every message through"
_QUEUES = "each queue takes files and memory; a number below 0 is no number of queues"
_KINDS = "there are no such topics here, and an OK would promise them"
_SETTINGS = "a setting that is unknown, wrong or fixed is not changed, and an OK would hide it"
_ONCE = "a transaction ends once: RocketMQ would deliver it twice, or after its rollback"
_POP = "there is no POP consumption here yet"

# Refused, though RocketMQ serves it.
STRICTER: Final = {
    "pull odd expression type": _FILTER,
    "pull bad sql": _FILTER,
    "send to timer topic": _OWN,
    "send to other system topic": _OWN,
    "send timer overflow": "RocketMQ's sum overflows and the message comes at once",
    "send batch delayed": "RocketMQ ignores the delay and the message comes at once",
    "clone to odd name": _NAMES,
    "clone missing dest": _NAMES,
    "lock empty group": _NAMES,
    "lock odd group": _NAMES,
    "reset missing timestamp": "no time would mean 1970: the whole group back to the start",
    "end twice": _ONCE,
    "end twice, differently": _ONCE,
    "end rolled back, then committed": _ONCE,
    "resume plain message": "a message that was never half would be delivered a second time",
    "topic -1 queues": _QUEUES,
    "topic many queues": _QUEUES,
    "topic 2000 queues": _QUEUES,
    "topic batch queue": _KINDS,
    "topic compaction": _KINDS,
    "group no body": "an OK would promise a group that nobody has named",
    "kv list emptied": "the names of emptied namespaces are not kept: they would grow for ever",
    "mode pop": _POP,
    "mode pop of absent group": _POP,
    "change config unknown": _SETTINGS,
    "change config odd value": _SETTINGS,
    "change config path": _SETTINGS,
    "change names config unknown": _SETTINGS,
}

# Served, though RocketMQ refuses it.
MORE: Final = {
    "send new topic 0 queues": "a new topic has one queue at least",
    "send new topic -1 queues": "a new topic has one queue at least",
}
