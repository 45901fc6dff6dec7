"""The C++ client of Apache RocketMQ by remote control, like the Java and Go drivers beside it.

``driver.py LIBRARY`` loads ``librocketmq.so``. Each line on stdin is a command as JSON,
{"id":1,"command":"send",...}, and is answered by one line {"re":1,"ok":true,...} or
{"re":1,"ok":false,"error":"..."}. What consumers receive comes as lines with an "event". The end of
stdin stops every client.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import capi

Options = dict[str, Any]

os.environ["HOME"] = os.getcwd()  # where the client keeps its log and broadcast offsets
api = capi.load(sys.argv[1])
output = threading.Lock()
producers: dict[str, capi.Handle] = {}
pullers: dict[str, capi.Handle] = {}
stops: dict[str, Callable[[], None]] = {}
callbacks: list[Any] = []  # C holds pointers to them: they live as long as the process


def emit(event: Options) -> None:
    with output:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def check(code: int) -> None:
    """The error text is that of the calling thread's last failure."""
    if code != 0:
        raise RuntimeError(f"{code}: {(api.GetLatestErrorMessage() or b'').decode()}")


def create(kind: str, options: Options) -> capi.Handle:
    """A producer or consumer, not yet running, that ``stop`` knows."""
    name = options["name"]
    handle: capi.Handle = getattr(api, f"Create{kind}")(options.get("group", f"g-{name}").encode())
    check(getattr(api, f"Set{kind}NameServerAddress")(handle, options["namesrv"].encode()))
    if "accessKey" in options:
        words = (options["accessKey"].encode(), options["secretKey"].encode(), b"ALIYUN")
        check(getattr(api, f"Set{kind}SessionCredentials")(handle, *words))

    def end() -> None:
        check(getattr(api, f"Shutdown{kind}")(handle))
        check(getattr(api, f"Destroy{kind}")(handle))

    stops[name] = end
    return handle


def producer(options: Options) -> Options:
    handle = create("Producer", options)
    check(api.SetProducerInstanceName(handle, options["name"].encode()))
    check(api.SetProducerMaxMessageSize(handle, options.get("maxSize", 4 << 20)))
    check(api.StartProducer(handle))
    producers[options["name"]] = handle
    return {}


def make_message(options: Options, n: int) -> capi.Handle:
    message: capi.Handle = api.CreateMessage(options["topic"].encode())
    body = f"{options.get('prefix', 'm')}-{n}".ljust(options.get("size", 0), ".").encode()
    check(api.SetByteMessageBody(message, body, len(body)))
    if "tags" in options:
        tags = options["tags"].split(",")
        check(api.SetMessageTags(message, tags[n % len(tags)].encode()))
    if "keys" in options:
        check(api.SetMessageKeys(message, f"{options['keys']}-{n}".encode()))
    if "delay" in options:
        check(api.SetDelayTimeLevel(message, options["delay"]))
    for key, value in options.get("properties", {}).items():
        check(api.SetMessageProperty(message, key.encode(), value.encode()))
    return message


def sent(result: capi.SendResult) -> Options:
    return {
        "status": capi.SEND_STATUS[result.status],
        "id": result.id.decode(),
        "offset": result.offset,
    }


def send_sync(handle: capi.Handle, messages: list[capi.Handle], options: Options) -> list[Options]:
    results = []
    for message in messages:
        result = capi.SendResult()
        check(api.SendMessageSync(handle, message, ctypes.byref(result)))
        results.append(sent(result))
    return results


def send_async(handle: capi.Handle, messages: list[capi.Handle], options: Options) -> list[Options]:
    results: dict[int, Options] = {}
    changed = threading.Condition()

    def settle(n: int, result: Options) -> None:
        with changed:
            results[n] = result
            changed.notify()

    for n, message in enumerate(messages):
        on_sent = capi.OnSent(lambda result, n=n: settle(n, sent(result)))
        on_error = capi.OnSendError(
            lambda error, n=n: settle(n, {"status": error.text.decode(errors="replace")})
        )
        callbacks.extend((on_sent, on_error))
        check(api.SendMessageAsync(handle, message, on_sent, on_error))
    with changed:
        if not changed.wait_for(lambda: len(results) == len(messages), timeout=20):
            raise RuntimeError(f"{len(results)} of {len(messages)} callbacks came within 20 s")
    return [results[n] for n in range(len(messages))]


def send_oneway(
    handle: capi.Handle, messages: list[capi.Handle], options: Options
) -> list[Options]:
    for message in messages:
        check(api.SendMessageOneway(handle, message))
    return []


def send_orderly(
    handle: capi.Handle, messages: list[capi.Handle], options: Options
) -> list[Options]:
    """Message n goes to the queue n % shards."""
    results = []
    for n, message in enumerate(messages):
        result, shard = capi.SendResult(), n % options["shards"]
        select = capi.SelectQueue(lambda size, _message, _argument, shard=shard: shard % size)
        unused = ctypes.byref(ctypes.c_int())  # the client wants an argument for its selector
        check(api.SendMessageOrderly(handle, message, select, unused, 3, ctypes.byref(result)))
        results.append(sent(result))
    return results


def send_batch(handle: capi.Handle, messages: list[capi.Handle], options: Options) -> list[Options]:
    batch = api.CreateBatchMessage()
    for message in messages:
        check(api.AddMessage(batch, message))
    result = capi.SendResult()
    check(api.SendBatchMessage(handle, batch, ctypes.byref(result)))
    check(api.DestroyBatchMessage(batch))
    return [sent(result)]


MODES = {
    "sync": send_sync,
    "async": send_async,
    "oneway": send_oneway,
    "orderly": send_orderly,
    "batch": send_batch,
}


def send(options: Options) -> Options:
    first = options.get("first", 0)
    messages = [make_message(options, n) for n in range(first, first + options.get("n", 1))]
    try:
        handle = producers[options["name"]]
        return {"sent": MODES[options.get("mode", "sync")](handle, messages, options)}
    finally:
        for message in messages:
            api.DestroyMessage(message)


def received(message: capi.Handle, properties: list[str]) -> Options:
    body = api.GetMessageBody(message)
    return {
        "topic": api.GetMessageTopic(message).decode(),
        "queue": api.GetMessageQueueId(message),
        "offset": api.GetMessageQueueOffset(message),
        "id": api.GetMessageId(message).decode(),
        "tag": api.GetMessageTags(message).decode(),
        "keys": api.GetMessageKeys(message).decode(),
        "times": api.GetMessageReconsumeTimes(message),
        "born": api.GetMessageBornTimestamp(message),
        "stored": api.GetMessageStoreTimestamp(message),
        "body": body.decode()[:200],
        "size": len(body),
        "properties": {p: api.GetMessageProperty(message, p.encode()).decode() for p in properties},
        "at": int(time.time() * 1000),
    }


def consumer(options: Options) -> Options:
    name, fails = options["name"], options.get("fails", 0)
    seen: dict[str, int] = {}

    def take(_consumer: int, pointer: int) -> int:
        got = received(capi.Handle(pointer), options.get("properties", []))
        emit({"event": "message", "client": name, "message": got})
        # An orderly consumer tries again by itself, without counting: so it is counted here.
        seen[got["body"]] = seen.get(got["body"], 0) + 1
        result: int = capi.CONSUME_SUCCESS
        if seen[got["body"]] <= fails:
            result = capi.RECONSUME_LATER
        return result

    handle = create("PushConsumer", options)
    check(api.SetPushConsumerInstanceName(handle, name.encode()))
    if options.get("model") == "BROADCASTING":
        check(api.SetPushConsumerMessageModel(handle, capi.BROADCASTING))
    check(api.Subscribe(handle, options["topic"].encode(), options.get("tags", "*").encode()))
    on_message = capi.OnMessage(take)
    callbacks.append(on_message)
    orderly = options.get("orderly", False)
    register = api.RegisterMessageCallbackOrderly if orderly else api.RegisterMessageCallback
    check(register(handle, on_message))
    check(api.StartPushConsumer(handle))
    return {}


def puller(options: Options) -> Options:
    handle = create("PullConsumer", options)
    check(api.StartPullConsumer(handle))
    pullers[options["name"]] = handle
    return {}


def pull(options: Options) -> Options:
    """All messages of all queues from their beginning, and the status that ended each queue."""
    handle, topic = pullers[options["name"]], options["topic"].encode()
    queues, count = ctypes.POINTER(capi.Queue)(), ctypes.c_int()
    check(
        api.FetchSubscriptionMessageQueues(handle, topic, ctypes.byref(queues), ctypes.byref(count))
    )
    messages, ends = [], []
    for queue in queues[: count.value]:
        offset = 0
        while True:
            tags = options.get("tags", "*").encode()
            begin = ctypes.c_longlong(offset)
            result = api.Pull(handle, ctypes.byref(queue), tags, begin, options.get("max", 32))
            found = capi.PULL_STATUS[result.status]
            messages += [received(message, []) for message in result.messages[: result.size]]
            offset = result.next
            api.ReleasePullResult(result)
            if found not in ("FOUND", "NO_MATCHED_MSG"):
                ends.append({"queue": queue.id, "status": found, "offset": offset})
                break
    check(api.ReleaseSubscriptionMessageQueue(queues))
    return {"messages": messages, "ends": ends}


def stop(options: Options) -> Options:
    stops.pop(options["name"])()
    return {}


COMMANDS = {
    "producer": producer,
    "send": send,
    "consumer": consumer,
    "puller": puller,
    "pull": pull,
    "stop": stop,
}


def main() -> None:
    for line in sys.stdin:
        options = json.loads(line)
        try:
            emit({"re": options["id"], "ok": True, **COMMANDS[options["command"]](options)})
        except Exception as error:  # the answer that the test gets
            emit({"re": options["id"], "ok": False, "error": str(error)})
    for name in list(stops):
        stop({"name": name})


main()
