package peers;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.MQAdmin;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Commands of the two pull consumers, and the queries and offsets that any consumer can ask for. */
@SuppressWarnings("deprecation") // DefaultMQPullConsumer is old, and still what many applications use
final class PullConsumers {
    private static final Map<String, DefaultMQPullConsumer> PULLING = new ConcurrentHashMap<>();
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();

    private PullConsumers() {
    }

    static void register(Map<String, ClientDriver.Command> commands) {
        commands.put("puller", PullConsumers::startPull);
        commands.put("queues", PullConsumers::queues);
        commands.put("pull", PullConsumers::pull);
        commands.put("commit", PullConsumers::commit);
        commands.put("offsets", PullConsumers::offsets);
        commands.put("byKey", PullConsumers::byKey);
        commands.put("byId", options -> Events.map("message", Events.message(
            puller(options).viewMessage(options.need("topic"), options.need("id")))));
        commands.put("lite", PullConsumers::startLite);
        commands.put("poll", PullConsumers::poll);
        commands.put("seek", PullConsumers::seek);
        commands.put("liteCommitted", PullConsumers::liteCommitted);
    }

    private static DefaultMQPullConsumer puller(Options options) {
        return PULLING.get(options.need("name"));
    }

    private static Map<String, Object> startPull(Options options) throws Exception {
        String name = options.need("name");
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.get("group", "g-" + name));
        Clients.configure(consumer, options);
        consumer.start();
        PULLING.put(name, consumer);
        ClientDriver.started(name, () -> {
            PULLING.remove(name);
            consumer.shutdown();
        });
        return Events.map("client", consumer.buildMQClientId());
    }

    private static MessageQueue queue(Options options) throws Exception {
        for (MessageQueue queue : puller(options).fetchSubscribeMessageQueues(options.need("topic"))) {
            if (queue.getQueueId() == options.number("queue", 0)) {
                return queue;
            }
        }
        throw new IllegalArgumentException("the topic has no queue " + options.number("queue", 0));
    }

    private static Map<String, Object> queues(Options options) throws Exception {
        List<Object> all = new ArrayList<>();
        for (MessageQueue queue : puller(options).fetchSubscribeMessageQueues(options.need("topic"))) {
            all.add(queue.getQueueId());
        }
        return Events.map("queues", all);
    }

    private static Map<String, Object> pull(Options options) throws Exception {
        MessageQueue queue = queue(options);
        long offset = options.big("offset", 0);
        String tags = options.get("tags", "*");
        long start = System.nanoTime();
        PullResult result = options.is("block")
            ? puller(options).pullBlockIfNotFound(queue, tags, offset, options.number("n", 32))
            : puller(options).pull(queue, tags, offset, options.number("n", 32));
        List<MessageExt> found = result.getMsgFoundList();
        return Events.map(
            "status", String.valueOf(result.getPullStatus()),
            "next", result.getNextBeginOffset(),
            "min", result.getMinOffset(),
            "max", result.getMaxOffset(),
            "ms", (System.nanoTime() - start) / 1000000,
            "messages", Events.messages(found == null ? Collections.emptyList() : found));
    }

    private static Map<String, Object> commit(Options options) throws Exception {
        DefaultMQPullConsumer consumer = puller(options);
        MessageQueue queue = queue(options);
        consumer.updateConsumeOffset(queue, options.big("offset", 0));
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        return Events.map();
    }

    private static Map<String, Object> offsets(Options options) throws Exception {
        DefaultMQPullConsumer consumer = puller(options);
        MessageQueue queue = queue(options);
        return Events.map(
            "min", consumer.minOffset(queue),
            "max", consumer.maxOffset(queue),
            "earliest", consumer.earliestMsgStoreTime(queue),
            "byTime", consumer.searchOffset(queue, options.big("time", 0)),
            "committed", consumer.fetchConsumeOffset(queue, true));
    }

    private static Map<String, Object> byKey(Options options) throws Exception {
        MQAdmin consumer = puller(options);
        QueryResult result = consumer.queryMessage(options.need("topic"), options.need("key"),
            options.number("n", 32), options.big("begin", 0), options.big("end", System.currentTimeMillis()));
        return Events.map("messages", Events.messages(result.getMessageList()));
    }

    private static DefaultLitePullConsumer lite(Options options) {
        return LITE.get(options.need("name"));
    }

    private static Map<String, Object> startLite(Options options) throws Exception {
        String name = options.need("name");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.need("group"));
        Clients.configure(consumer, options);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(!options.is("manual"));
        if (options.has("assign")) {
            consumer.start();
            consumer.assign(consumer.fetchMessageQueues(options.need("assign")));
        } else {
            consumer.subscribe(options.need("topic"), options.get("tags", "*"));
            consumer.start();
        }
        LITE.put(name, consumer);
        ClientDriver.started(name, () -> {
            LITE.remove(name);
            consumer.shutdown();
        });
        return Events.map("client", consumer.buildMQClientId());
    }

    /** Polls until n messages came or the time is over. */
    private static Map<String, Object> poll(Options options) {
        List<Object> messages = new ArrayList<>();
        long end = System.currentTimeMillis() + options.number("wait", 10000);
        while (messages.size() < options.number("n", 1) && System.currentTimeMillis() < end) {
            messages.addAll(Events.messages(lite(options).poll(500)));
        }
        if (options.is("commit")) {
            lite(options).commitSync();
        }
        return Events.map("messages", messages);
    }

    private static Map<String, Object> seek(Options options) throws Exception {
        for (MessageQueue queue : lite(options).fetchMessageQueues(options.need("topic"))) {
            lite(options).seek(queue, options.big("offset", 0));
        }
        return Events.map();
    }

    private static Map<String, Object> liteCommitted(Options options) throws Exception {
        Map<String, Object> offsets = Events.map();
        for (MessageQueue queue : lite(options).fetchMessageQueues(options.need("topic"))) {
            offsets.put(String.valueOf(queue.getQueueId()), lite(options).committed(queue));
        }
        return Events.map("committed", offsets);
    }
}
