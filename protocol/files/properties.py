"""Message properties: the string `name\\x01value\\x02...` and the names with a meaning."""

from typing import Final

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"
NAME_END_BYTES: Final = NAME_END.encode()
PAIR_END_BYTES: Final = PAIR_END.encode()

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
POP_CK: Final = "POP_CK"
SHARDING_KEY: Final = "__SHARDINGKEY"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_CARRIED_FROM: Final = "TIMER_CARRIED_FROM"  # ours, as the next one: set by the broker only
TIMER_CARRIED_LEVEL: Final = "TIMER_CARRIED_LEVEL"
LAST_FAILURE: Final = "LAST_FAILURE"  # ours: why a consumer returned the message
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
NUL: Final = "\0"
CRC32: Final = "__CRC32#"

PROPERTIES_SIZE_MAX: Final = 32767
FAILURE_SIZE_MAX: Final = 512  # characters


def parse(text: str) -> dict[str, str]:
    """The pairs of a property string; those with an empty name or value are skipped."""
    pairs = {}
    for one in text.split(PAIR_END):
        name, found, value = one.partition(NAME_END)
        if found and name and value:
            pairs[name] = value
    return pairs


def encode(pairs: dict[str, str]) -> str:
    """The property string of `pairs`, each pair terminated (every reader accepts that)."""
    return "".join(pair(name, value) for name, value in pairs.items())


def pair(name: str, value: str) -> str:
    return f"{name}{NAME_END}{value}{PAIR_END}"


def ended(text: str) -> str:
    """`text` with its last pair terminated, so that another may follow."""
    return text + PAIR_END if text and text[-1] != PAIR_END else text


def value_span(text: str, name: str) -> tuple[int, int] | None:
    """The position of a property's value, found without parsing the others; of several the last
    that is not empty, as in `parse`. None: there is none."""
    wanted = name + NAME_END
    at = text.rfind(wanted)
    while at >= 0:
        if at == 0 or text[at - 1] == PAIR_END:
            start = at + len(wanted)
            end = text.find(PAIR_END, start)
            if end < 0:
                end = len(text)
            if start < end:
                return start, end
        at = text.rfind(wanted, 0, at)
    return None


def get(text: str, name: str) -> str | None:
    """The value of one property."""
    span = value_span(text, name)
    return text[span[0] : span[1]] if span is not None else None


def key_spans(text: str) -> list[tuple[int, int]]:
    """The positions of a message's keys: UNIQ_KEY and the words of KEYS."""
    spans = []
    unique = value_span(text, UNIQ_KEY)
    if unique is not None:
        spans.append(unique)
    words = value_span(text, KEYS)
    if words is not None:
        start, last = words
        for word in text[start:last].split(" "):
            if word:
                spans.append((start, start + len(word)))
            start += len(word) + 1
    return spans


def keys_of(text: str) -> list[str]:
    """The keys under which a message is found in the index."""
    return [text[start:end] for start, end in key_spans(text)]


def put(text: str, name: str, value: str) -> str:
    """`text` with the property set to `value`, replacing an earlier one."""
    text = ended(text) if get(text, name) is None else remove(text, name)
    return text + pair(name, value)


def remove(text: str, *names: str) -> str:
    """`text` without the named properties."""
    pairs = (one for one in text.split(PAIR_END) if one)
    kept = [one for one in pairs if one.partition(NAME_END)[0] not in names]
    return "".join(one + PAIR_END for one in kept)
