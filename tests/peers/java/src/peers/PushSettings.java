package peers;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** Options of a push consumer that map to one setter each. */
final class PushSettings {
    private PushSettings() {
    }

    static void apply(DefaultMQPushConsumer consumer, Options options) {
        Reflected.setEnum(consumer, "setMessageModel", options.get("model", "CLUSTERING"));
        consumer.setConsumeFromWhere(
            ConsumeFromWhere.valueOf("CONSUME_FROM_" + options.get("from", "FIRST_OFFSET")));
        if (options.has("timestamp")) {
            consumer.setConsumeTimestamp(options.need("timestamp"));
        }
        consumer.setMaxReconsumeTimes(options.number("maxTimes", -1));
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        consumer.setPullBatchSize(options.number("pull", 32));
        consumer.setConsumeThreadMin(options.number("threads", 4));
        consumer.setConsumeThreadMax(options.number("threads", 4));
        consumer.setHeartbeatBrokerInterval(options.number("heartbeat", 30_000));
        consumer.setPostSubscriptionWhenPull(options.is("postSubscription"));
    }
}
