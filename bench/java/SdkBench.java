import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The same work as bench/sdk.py by Apache's Java client: numbered messages in batches from one
 * thread, then all of them back through a push consumer.
 * SdkBench NAMESRV TOPIC COUNT SIZE BATCH; prints "send SECONDS" and "consume SECONDS missing N".
 */
public final class SdkBench {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        byte[] filler = new byte[Integer.parseInt(args[3])];
        int batch = Integer.parseInt(args[4]);
        new Random(1).nextBytes(filler);
        send(args[0], topic, count, filler, batch);
        consume(args[0], topic, count);
        System.exit(0);
    }

    private static void send(String namesrv, String topic, int count, byte[] filler, int batch)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(30000);
        producer.setMaxMessageSize(4 << 20);
        producer.start();
        long begun = System.nanoTime();
        for (int number = 0; number < count; ) {
            List<Message> messages = new ArrayList<>(batch);
            for (; messages.size() < batch && number < count; number++) {
                byte[] body = filler.clone();
                for (int i = 0; i < 4; i++) {
                    body[i] = (byte) (number >>> (24 - 8 * i));
                }
                messages.add(new Message(topic, body));
            }
            producer.send(messages);
        }
        System.out.printf("send %.3f%n", (System.nanoTime() - begun) / 1e9);
        producer.shutdown();
    }

    private static void consume(String namesrv, String topic, int count) throws Exception {
        BitSet seen = new BitSet(count);
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-java-" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(1024);
        consumer.setConsumeMessageBatchMaxSize(256);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (seen) {
                for (MessageExt message : messages) {
                    byte[] body = message.getBody();
                    seen.set((body[0] & 255) << 24 | (body[1] & 255) << 16 | (body[2] & 255) << 8 | body[3] & 255);
                }
                if (seen.cardinality() == count) {
                    done.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long begun = System.nanoTime();
        consumer.start();
        done.await(20, TimeUnit.MINUTES);
        System.out.printf("consume %.3f missing %d%n", (System.nanoTime() - begun) / 1e9, count - seen.cardinality());
        consumer.shutdown();
    }
}
