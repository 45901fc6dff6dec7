"""The rows that tasks of the exactly-once sink have prepared: records of the log that no consumer
sees, each with a chunk of rows for one queue."""

from typing import Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.services.ledger_book import Chunk, Intent
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files import properties
from aerobee.protocol.files.record import (
    TRANSACTION_PREPARED,
    Message,
    StoredMessage,
    decode_record,
)
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.names import SYSTEM_TOPIC_PREFIX
from aerobee.protocol.wire.codes import ResponseCode

PREPARED_TOPIC: Final = SYSTEM_TOPIC_PREFIX + "SPARK_PREPARED"
_NAMED: Final = "SPARK_NAMED"  # of a chunk whose rows have names
_CHUNK_ID: Final = "SPARK_CHUNK"


class PreparedChunks:
    """Stores chunks and reads them again."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def prepare(
        self,
        query: str,
        batch: int,
        chunk: Chunk,
        rows: Message,
        queue_id: int,
        *,
        named: bool = False,
    ) -> PutResult:
        """Stores a chunk; `rows` has the target topic and the encoded rows as its body."""
        text = properties.encode(
            {
                _CHUNK_ID: chunk.name(query, batch),
                properties.REAL_TOPIC: rows.topic,
                properties.REAL_QID: str(queue_id),
                **({_NAMED: "true"} if named else {}),
            }
        )
        rows.topic, rows.queue_id, rows.properties = PREPARED_TOPIC, 0, text
        rows.sys_flag |= TRANSACTION_PREPARED
        return self._store.put([rows])[0]

    def check(self, query: str, batch: int, chunk: Chunk, timeout_ms: int | None = None) -> None:
        """Refused unless the chunk is there, whole, and at most so old."""
        record = self.read(query, batch, chunk, with_rows=False)
        age_ms = self._clock.now_ms() - record.store_timestamp
        if timeout_ms is not None and age_ms > timeout_ms:
            raise Refused(
                ResponseCode.TRANSACTION_FAILED,
                f"the rows were prepared {age_ms // 1000} s ago, the timeout is "
                f"{timeout_ms // 1000} s (preparedTimeout); run the batch again",
            )

    def are_lost(self, query: str, intent: Intent) -> bool:
        """Whether a chunk of the intent is gone: then a later attempt of the batch replaces it."""
        try:
            for chunk in intent.chunks:
                self.check(query, intent.batch, chunk)
        except Refused:
            return True
        return False

    def read(
        self, query: str, batch: int, chunk: Chunk, *, with_rows: bool = True
    ) -> StoredMessage:
        """The stored chunk; Refused when it is not there, damaged (a read compares the checksum) or
        another's."""
        view = self._store.record_at(chunk.offset, chunk.size)
        name = chunk.name(query, batch)
        record = None
        try:
            if view is not None:
                record = decode_record(view, with_body=with_rows)
        except CorruptRecord as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"chunk {name} is damaged: {error}") from None
        if record is None or properties.get(record.properties, _CHUNK_ID) != name:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"chunk {name} is not at {chunk.offset}: it was removed with its log file, or lost "
                "in a crash; run the batch again",
            )
        return record


def are_named(record: StoredMessage) -> bool:
    """Whether the chunk's rows bring their names."""
    return properties.get(record.properties, _NAMED) is not None
