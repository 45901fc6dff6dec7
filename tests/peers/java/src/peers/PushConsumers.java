package peers;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The command of push consumers, concurrent or orderly; every message that they get is an event. */
final class PushConsumers {
    private PushConsumers() {
    }

    static void register(Map<String, ClientDriver.Command> commands) {
        commands.put("consumer", PushConsumers::start);
    }

    private static Map<String, Object> start(Options options) throws Exception {
        String name = options.need("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.need("group"), Clients.hook(options), new AllocateMessageQueueAveragely(), options.is("trace"), null);
        Clients.configure(consumer, options);
        PushSettings.apply(consumer, options);
        for (String topic : options.need("topic").split(",")) {
            if (options.has("sql")) {
                consumer.subscribe(topic, MessageSelector.bySql(options.need("sql")));
            } else {
                consumer.subscribe(topic, options.get("tags", "*"));
            }
        }
        DefaultMQProducer replier = options.is("reply") ? replier(name, options) : null;
        Listener listener = new Listener(name, options, replier);
        if (options.get("mode", "concurrent").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                if (listener.accept(messages, context.getMessageQueue())) {
                    return ConsumeOrderlyStatus.SUCCESS;
                }
                context.setSuspendCurrentQueueTimeMillis(options.number("suspend", 200));
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                if (listener.accept(messages, context.getMessageQueue())) {
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }
                context.setDelayLevelWhenNextConsume(options.number("level", 0));
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        ClientDriver.started(name, () -> {
            consumer.shutdown();
            if (replier != null) {
                replier.shutdown();
            }
        });
        return Events.map("client", consumer.buildMQClientId());
    }

    private static DefaultMQProducer replier(String name, Options options) throws Exception {
        DefaultMQProducer replier = new DefaultMQProducer("replier-" + name);
        Clients.configure(replier, options);
        replier.start();
        return replier;
    }

    /** Tells what came; fails=N refuses a message until it came N times again, fails=-1 always. */
    private static final class Listener {
        private final String client;
        private final int fails;
        private final int pauseMs;
        private final DefaultMQProducer replier;

        Listener(String client, Options options, DefaultMQProducer replier) {
            this.client = client;
            this.fails = options.number("fails", 0);
            this.pauseMs = options.number("pause", 0);
            this.replier = replier;
        }

        boolean accept(List<MessageExt> messages, MessageQueue queue) {
            boolean accepted = true;
            for (MessageExt message : messages) {
                boolean ok = fails >= 0 && message.getReconsumeTimes() >= fails;
                accepted &= ok;
                Events.emit("event", "message", "client", client, "accepted", ok, "fromTopic", queue.getTopic(),
                    "message", Events.message(message));
                reply(message);
            }
            pause();
            return accepted;
        }

        private void pause() {
            try {
                Thread.sleep(pauseMs);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }

        private void reply(MessageExt message) {
            if (replier == null) {
                return;
            }
            try {
                byte[] body = ("reply to " + new String(message.getBody())).getBytes(StandardCharsets.UTF_8);
                replier.send(MessageUtil.createReplyMessage(message, body), 3000);
            } catch (Exception error) {
                Events.emit("event", "replyFailed", "client", client, "error", String.valueOf(error));
            }
        }
    }
}
