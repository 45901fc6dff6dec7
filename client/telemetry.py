"""OpenTelemetry for one client, on request: `connect(url, telemetry=True)`.

Spans and metrics by the messaging conventions (1.44, in development: only this module names them).
The context travels in message properties under the names of its fields (`traceparent`,
`tracestate`, `baggage`), as OpenTelemetry's Java agent writes them, so that one trace goes through
both, and through retries and timers, which keep properties.

It needs `opentelemetry-api` only; without an SDK that exports, the calls do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aerobee.client.errors import Misuse
from aerobee.protocol.files import properties as props

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span

SCOPE: Final = "aerobee"
SEND: Final = "send"
RECEIVE: Final = "receive"
PROCESS: Final = "process"

_SYSTEM: Final = {"messaging.system": "rocketmq", "messaging.rocketmq.namespace": ""}
_OPERATION: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_DESTINATION: Final = "messaging.destination.name"
_MESSAGE_ID: Final = "messaging.message.id"
_BODY_SIZE: Final = "messaging.message.body.size"
_BATCH_COUNT: Final = "messaging.batch.message_count"
_CLIENT_ID: Final = "messaging.client.id"
_GROUP: Final = "messaging.consumer.group.name"
_MODEL: Final = "messaging.rocketmq.consumption_model"
_ERROR: Final = "error.type"
# Properties of a message that are attributes of its span.
_OF_MESSAGE: Final = {
    props.TAGS: "messaging.rocketmq.message.tag",
    props.SHARDING_KEY: "messaging.rocketmq.message.group",
}
_KEYS: Final = "messaging.rocketmq.message.keys"
_TYPE: Final = "messaging.rocketmq.message.type"
# Seconds, as the conventions advise.
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Telemetry:
    """The spans and metrics of one client."""

    def __init__(self) -> None:
        try:
            from opentelemetry import metrics, propagate, trace
        except ImportError:
            raise Misuse(
                "telemetry needs OpenTelemetry's API", hint="pip install 'aerobee[otel]'"
            ) from None
        self.client_id = ""
        self._trace = trace
        self._propagate = propagate
        self._tracer = trace.get_tracer(SCOPE)
        meter = metrics.get_meter(SCOPE)

        def duration(name: str, text: str) -> Any:
            return meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=_BOUNDS
            )

        self._operation_duration = duration(
            "messaging.client.operation.duration", "Duration of a request to a broker"
        )
        self._process_duration = duration(
            "messaging.process.duration", "Duration of handling a message"
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages sent"
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages received"
        )

    # -- context in properties

    def with_context(self, text: str) -> str:
        """A message's properties with the current context, if there is one."""
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier)
        if not carrier:
            return text
        fields = self._propagate.get_global_textmap().fields
        text = props.remove(text, *fields)
        return text + props.encode({name: value for name, value in carrier.items() if value})

    def context_of(self, properties: Mapping[str, str]) -> Context:
        """The context in which the message was made."""
        from opentelemetry.context import Context

        return self._propagate.extract(properties, Context())

    def _link(self, properties: Mapping[str, str]) -> Link | None:
        found = self._trace.get_current_span(self.context_of(properties)).get_span_context()
        return self._trace.Link(found) if found.is_valid else None

    # -- operations

    @contextmanager
    def sending(self, topic: str, texts: Sequence[str], size: int, kind: str) -> Iterator[Span]:
        """Around a send of messages with these properties; the span is the current one inside."""
        attributes = self._attributes(SEND, topic)
        parent: Context | None = None
        links: list[Link] = []
        if len(texts) == 1:
            known = props.parse(texts[0])
            attributes |= _message_attributes(known, size) | {_TYPE: kind}
            parent = self._parent(known)
        else:
            attributes[_BATCH_COUNT] = len(texts)
            found = (self._link(props.parse(text)) for text in texts)
            links = [link for link in found if link is not None]
        with (
            self._measured(self._operation_duration, SEND, topic),
            self._tracer.start_as_current_span(
                f"{SEND} {topic}",
                parent,
                self._trace.SpanKind.PRODUCER,
                attributes,
                links,
                record_exception=False,
            ) as span,
        ):
            try:
                yield span
            except Exception as error:
                span.set_attribute(_ERROR, type(error).__name__)
                self._sent.add(len(texts), self._labels(SEND, topic, error))
                raise
        self._sent.add(len(texts), self._labels(SEND, topic))

    def _parent(self, properties: Mapping[str, str]) -> Context | None:
        """The context in which a message was made, unless it is the current one: a buffer sends
        later, and from a task of its own."""
        made = self.context_of(properties)
        made_by = self._trace.get_current_span(made).get_span_context()
        current = self._trace.get_current_span().get_span_context()
        return made if made_by.is_valid and made_by.span_id != current.span_id else None

    def received(
        self, topic: str, group: str, found: Sequence[Mapping[str, str]], broadcast: bool
    ) -> None:
        """A pull has returned messages with these properties."""
        attributes = self._attributes(RECEIVE, topic) | _consumer(group, broadcast)
        attributes[_BATCH_COUNT] = len(found)
        links = [link for each in found if (link := self._link(each)) is not None]
        self._tracer.start_span(
            f"{RECEIVE} {topic}",
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            links=links,
        ).end()
        self._consumed.add(len(found), self._labels(RECEIVE, topic) | {_GROUP: group})

    @contextmanager
    def processing(
        self, topic: str, group: str, properties: Mapping[str, str], size: int, broadcast: bool
    ) -> Iterator[Span]:
        """Around the handling of one message: a part of the trace in which it was made."""
        attributes = self._attributes(PROCESS, topic) | _consumer(group, broadcast)
        attributes |= _message_attributes(properties, size)
        with (
            self._measured(self._process_duration, PROCESS, topic, group),
            self._tracer.start_as_current_span(
                f"{PROCESS} {topic}",
                self.context_of(properties),
                self._trace.SpanKind.CONSUMER,
                attributes,
            ) as span,
        ):
            try:
                yield span
            except Exception as error:
                span.set_attribute(_ERROR, type(error).__name__)
                raise

    # -- attributes

    def _attributes(self, operation: str, topic: str) -> dict[str, Any]:
        return _SYSTEM | {
            _OPERATION: operation,
            _OPERATION_TYPE: operation,
            _DESTINATION: topic,
            _CLIENT_ID: self.client_id,
        }

    def _labels(
        self, operation: str, topic: str, error: BaseException | None = None
    ) -> dict[str, Any]:
        labels = _SYSTEM | {_OPERATION: operation, _DESTINATION: topic}
        return labels if error is None else labels | {_ERROR: type(error).__name__}

    @contextmanager
    def _measured(
        self, histogram: Any, operation: str, topic: str, group: str | None = None
    ) -> Iterator[None]:
        begun = time.perf_counter()
        labels = self._labels(operation, topic) | ({} if group is None else {_GROUP: group})
        try:
            yield
        except Exception as error:
            labels[_ERROR] = type(error).__name__
            raise
        finally:
            histogram.record(time.perf_counter() - begun, labels)


def _consumer(group: str, broadcast: bool) -> dict[str, Any]:
    return {_GROUP: group, _MODEL: "broadcasting" if broadcast else "clustering"}


def _message_attributes(properties: Mapping[str, str], size: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: properties[known] for known, name in _OF_MESSAGE.items() if known in properties
    }
    if keys := properties.get(props.KEYS):
        found[_KEYS] = keys.split()
    if message_id := properties.get(props.UNIQ_KEY):
        found[_MESSAGE_ID] = message_id
    return found | {_BODY_SIZE: size}
