import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache's Java client as a load client: RocketmqDriver NAMESRV, then commands by line.
 * send: conns threads, each with a producer and a connection of its own and up to `window` asynchronous
 * sends under way; window=1 sends synchronously. pull: conns pull consumers, each on one queue, again and
 * again from its start. Every SendResult's status, every offset and every body's size is checked.
 */
public final class RocketmqDriver {
    private static String namesrv;
    private static int instances;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        Lines.serve(Map.of("send", RocketmqDriver::send, "pull", RocketmqDriver::pull));
    }

    private static Lines.Figures send(Map<String, String> options) throws Exception {
        String topic = options.get("topic");
        int total = Lines.number(options, "n", 100_000);
        int threads = Lines.number(options, "conns", 4);
        int window = Lines.number(options, "window", 32);
        byte[] body = Lines.body(Lines.number(options, "size", 1024));
        List<DefaultMQProducer> producers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            producers.add(producer());
        }
        Lines.Figures figures = new Lines.Figures(total);
        figures.timed(threads, thread -> {
            int share = total / threads + (thread < total % threads ? 1 : 0);
            if (window == 1) {
                sendOneByOne(producers.get(thread), topic, share, body, figures);
            } else {
                sendWindow(producers.get(thread), topic, share, body, window, figures);
            }
        });
        producers.forEach(DefaultMQProducer::shutdown);
        return figures;
    }

    private static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("send-" + instances++); // one connection for each
        producer.setSendMsgTimeout(30_000);
        producer.setRetryTimesWhenSendFailed(0); // a repeated send would be stored twice
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        return producer;
    }

    private static void sendOneByOne(
        DefaultMQProducer producer, String topic, int share, byte[] body, Lines.Figures figures) throws Exception {
        for (int i = 0; i < share && figures.allGood(); i++) {
            long begun = System.nanoTime();
            note(producer.send(message(topic, i, body)), begun, figures);
        }
    }

    private static void sendWindow(
        DefaultMQProducer producer, String topic, int share, byte[] body, int window, Lines.Figures figures)
        throws Exception {
        Semaphore free = new Semaphore(window);
        for (int i = 0; i < share && figures.allGood(); i++) {
            free.acquire();
            long begun = System.nanoTime();
            producer.send(message(topic, i, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    note(result, begun, figures);
                    free.release();
                }

                @Override
                public void onException(Throwable e) {
                    figures.bad(e);
                    free.release();
                }
            });
        }
        free.acquire(window);
    }

    /** Tag and key as the C load client sets them; the client itself adds its unique key. */
    private static Message message(String topic, int number, byte[] body) {
        return new Message(topic, "TagA", "K" + number, body);
    }

    private static void note(SendResult result, long begun, Lines.Figures figures) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            figures.good(System.nanoTime() - begun);
        } else {
            figures.bad(result);
        }
    }

    private static Lines.Figures pull(Map<String, String> options) throws Exception {
        String topic = options.get("topic");
        int total = Lines.number(options, "n", 100_000);
        int threads = Lines.number(options, "conns", 4);
        int most = Lines.number(options, "max", 32);
        int size = Lines.number(options, "size", 1024);
        List<DefaultMQPullConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("bench-java-pull");
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName("pull-" + instances++);
            consumer.start();
            consumers.add(consumer);
        }
        List<MessageQueue> queues = new ArrayList<>(consumers.get(0).fetchSubscribeMessageQueues(topic));
        Collections.sort(queues);
        Lines.Figures figures = new Lines.Figures(0);
        figures.timed(threads, thread ->
            pullQueue(consumers.get(thread), queues.get(thread % queues.size()), most, size, total, figures));
        consumers.forEach(DefaultMQPullConsumer::shutdown);
        return figures;
    }

    private static void pullQueue(
        DefaultMQPullConsumer consumer, MessageQueue queue, int most, int size, int total, Lines.Figures figures)
        throws Exception {
        for (long offset = 0; figures.count() < total; ) {
            PullResult result = consumer.pull(queue, "*", offset, most);
            if (result.getPullStatus() != PullStatus.FOUND) {
                if (offset == 0) {
                    throw new IllegalStateException(queue + " holds nothing: " + result);
                }
                offset = 0; // at the end: once more from the start
                continue;
            }
            for (MessageExt message : result.getMsgFoundList()) {
                if (message.getQueueOffset() != offset++ || message.getBody().length != size) {
                    throw new IllegalStateException("not what was sent: " + message);
                }
            }
            figures.add(result.getMsgFoundList().size());
        }
    }
}
