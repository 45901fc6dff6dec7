package peers;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Commands of producers: sends of every kind, transactions, requests and recalls. */
final class Producers {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();

    private Producers() {
    }

    static void register(Map<String, ClientDriver.Command> commands) {
        commands.put("producer", Producers::start);
        commands.put("send", Producers::send);
        commands.put("transaction", Producers::transaction);
        commands.put("request", Producers::request);
        commands.put("recall", options -> Events.map("id",
            Reflected.call(producer(options), "recallMessage", options.need("topic"), options.need("handle"))));
    }

    private static DefaultMQProducer producer(Options options) {
        DefaultMQProducer producer = PRODUCERS.get(options.need("name"));
        if (producer == null) {
            throw new IllegalArgumentException("no producer named " + options.need("name"));
        }
        return producer;
    }

    private static Map<String, Object> start(Options options) throws Exception {
        String name = options.need("name");
        String group = options.get("group", "p-" + name);
        DefaultMQProducer producer;
        if (options.is("transactions")) {
            TransactionMQProducer transactional = new TransactionMQProducer(group, Clients.hook(options));
            transactional.setTransactionListener(new Decisions(name));
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(group, Clients.hook(options), options.is("trace"), null);
        }
        Clients.configure(producer, options);
        producer.setSendMsgTimeout(options.number("timeout", 5000));
        producer.setRetryTimesWhenSendFailed(options.number("retries", 2));
        if (options.has("compress")) {
            Reflected.setEnum(producer, "setCompressType", options.need("compress"));
        }
        producer.start();
        PRODUCERS.put(name, producer);
        ClientDriver.started(name, () -> {
            PRODUCERS.remove(name);
            producer.shutdown();
        });
        return Events.map("client", producer.buildMQClientId());
    }

    /** The n-th message that a command describes; bodies are "prefix-n", filled up to size with dots. */
    private static Message message(Options options, int n) {
        byte[] text = (options.get("prefix", "m") + "-" + n).getBytes(StandardCharsets.UTF_8);
        byte[] body = Arrays.copyOf(text, Math.max(text.length, options.number("size", 0)));
        Arrays.fill(body, text.length, body.length, (byte) '.');
        Message message = new Message(options.need("topic"), body);
        if (options.has("tags")) {
            String[] tags = options.need("tags").split(",");
            message.setTags(tags[n % tags.length]);
        }
        if (options.has("keys")) {
            message.setKeys(options.need("keys") + "-" + n);
        }
        if (options.has("delay")) {
            message.setDelayTimeLevel(options.number("delay", 0));
        }
        options.under("prop.").forEach((key, value) ->
            MessageAccessor.putProperty(message, key, value.replace("{n}", String.valueOf(n))));
        return message;
    }

    private static Map<String, Object> send(Options options) throws Exception {
        DefaultMQProducer producer = producer(options);
        List<Message> messages = new ArrayList<>();
        for (int n = options.number("first", 0); n < options.number("first", 0) + options.number("n", 1); n++) {
            messages.add(message(options, n));
        }
        List<Object> results = new ArrayList<>();
        switch (options.get("mode", "sync")) {
            case "sync":
                for (int i = 0; i < messages.size(); i++) {
                    results.add(Events.sent(sendOne(producer, messages.get(i), options, i)));
                }
                break;
            case "async":
                results = sendAsync(producer, messages, options);
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                results.add(Events.sent(producer.send(messages)));
                break;
            default:
                throw new IllegalArgumentException("mode is sync, async, oneway or batch");
        }
        return Events.map("sent", results);
    }

    /** queue=N sends to that queue; shards=N sends message i by its shard i % N, as ordered senders do. */
    private static SendResult sendOne(DefaultMQProducer producer, Message message, Options options, int i)
        throws Exception {
        MessageQueueSelector byNumber = (queues, m, number) -> queues.get((Integer) number % queues.size());
        if (options.has("queue")) {
            return producer.send(message, byNumber, options.number("queue", 0));
        }
        if (options.has("shards")) {
            return producer.send(message, byNumber, i % options.number("shards", 1));
        }
        return producer.send(message);
    }

    private static List<Object> sendAsync(DefaultMQProducer producer, List<Message> messages, Options options)
        throws Exception {
        Object[] results = new Object[messages.size()];
        CountDownLatch open = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            int slot = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[slot] = Events.sent(result);
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    results[slot] = Events.map("status", "ERROR", "error", String.valueOf(error));
                    open.countDown();
                }
            });
        }
        if (!open.await(options.number("wait", 30000), TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(open.getCount() + " asynchronous sends were never answered");
        }
        return Arrays.asList(results);
    }

    private static Map<String, Object> transaction(Options options) throws Exception {
        TransactionMQProducer producer = (TransactionMQProducer) producer(options);
        List<Object> results = new ArrayList<>();
        for (int n = 0; n < options.number("n", 1); n++) {
            Message message = message(options, n);
            message.putUserProperty("local", options.get("local", "commit"));
            message.putUserProperty("check", options.get("check", "unknown"));
            results.add(Events.sent(producer.sendMessageInTransaction(message, null)));
        }
        return Events.map("sent", results);
    }

    private static Map<String, Object> request(Options options) throws Exception {
        long start = System.nanoTime();
        Message reply = producer(options).request(message(options, 0), options.number("wait", 10000));
        return Events.map(
            "reply", new String(reply.getBody(), StandardCharsets.UTF_8),
            "ms", (System.nanoTime() - start) / 1000000);
    }

    /** Decides as the message's own properties say: "local" at the send, "check" when the broker asks. */
    private static final class Decisions implements TransactionListener {
        private final String client;

        Decisions(String client) {
            this.client = client;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return decide(message, "local");
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Events.emit("event", "check", "client", client, "message", Events.message(message));
            return decide(message, "check");
        }

        private static LocalTransactionState decide(Message message, String property) {
            switch (message.getUserProperty(property)) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }
}
