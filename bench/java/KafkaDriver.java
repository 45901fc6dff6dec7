import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own Java client as a load client: KafkaDriver ADDRESS, then commands by line.
 * Its defaults (acks=all, idempotent), but linger.ms=0: with a bounded number of sends under way, a wait
 * for more of them would only cost. Topics have 4 partitions; pull reads one by each of conns consumers.
 */
public final class KafkaDriver {
    private static final int PARTITIONS = 4;
    private static final int RECORD_OVERHEAD = 100;
    private static String address;
    private static KafkaProducer<byte[], byte[]> starter;

    public static void main(String[] args) throws Exception {
        address = args[0];
        Lines.serve(Map.of("first", KafkaDriver::first, "send", KafkaDriver::send,
            "pull", KafkaDriver::pull, "count", KafkaDriver::count));
    }

    private static KafkaProducer<byte[], byte[]> producer(Map<String, String> more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("linger.ms", "0");
        settings.put("request.timeout.ms", "20000");
        settings.put("delivery.timeout.ms", "30000");
        settings.putAll(more);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** One message, if it is taken within a second: how the start of the server is timed. */
    private static Lines.Figures first(Map<String, String> options) throws Exception {
        if (starter == null) {
            starter = producer(Map.of("reconnect.backoff.ms", "5", "reconnect.backoff.max.ms", "20",
                "retry.backoff.ms", "10", "retry.backoff.max.ms", "20", "max.block.ms", "1000",
                "enable.metrics.push", "false"));
        }
        Lines.Figures figures = new Lines.Figures(1);
        try {
            starter.send(new ProducerRecord<>("Start", Lines.body(5))).get(1, TimeUnit.SECONDS);
            figures.add(1);
            starter.close();
        } catch (java.util.concurrent.TimeoutException | java.util.concurrent.ExecutionException e) {
            System.err.println("not yet: " + e);
        }
        return figures;
    }

    private static Lines.Figures send(Map<String, String> options) throws Exception {
        String topic = options.get("topic");
        int total = Lines.number(options, "n", 100_000);
        int threads = Lines.number(options, "conns", 4);
        int window = Lines.number(options, "window", 32);
        byte[] body = Lines.body(Lines.number(options, "size", 1024));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
        }
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            producers.add(producer(Map.of()));
            producers.get(i).partitionsFor(topic);
        }
        Lines.Figures figures = new Lines.Figures(total);
        figures.timed(threads, thread -> {
            int share = total / threads + (thread < total % threads ? 1 : 0);
            sendWindow(producers.get(thread), topic, share, body, window, figures);
        });
        producers.forEach(KafkaProducer::close);
        return figures;
    }

    private static void sendWindow(
        KafkaProducer<byte[], byte[]> producer, String topic, int share, byte[] body, int window,
        Lines.Figures figures) throws InterruptedException {
        Semaphore free = new Semaphore(window);
        for (int i = 0; i < share && figures.allGood(); i++) {
            free.acquire();
            long begun = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, body), (metadata, error) -> {
                if (error == null && metadata.hasOffset()) {
                    figures.good(System.nanoTime() - begun);
                } else {
                    figures.bad(error);
                }
                free.release();
            });
        }
        free.acquire(window);
    }

    private static Lines.Figures pull(Map<String, String> options) throws Exception {
        int total = Lines.number(options, "n", 100_000);
        int most = Lines.number(options, "max", 32);
        int size = Lines.number(options, "size", 1024);
        List<KafkaConsumer<byte[], byte[]>> consumers = new ArrayList<>();
        for (int i = 0; i < Lines.number(options, "conns", 4); i++) {
            consumers.add(consumer(options.get("topic"), i % PARTITIONS, most, size));
        }
        Lines.Figures figures = new Lines.Figures(0);
        figures.timed(consumers.size(), thread -> {
            while (figures.count() < total) {
                if (readOnce(consumers.get(thread), size, total, figures) == 0 && figures.count() < total) {
                    throw new IllegalStateException("partition " + thread % PARTITIONS + " holds nothing");
                }
            }
        });
        consumers.forEach(KafkaConsumer::close);
        return figures;
    }

    /** Every partition once to its end: what is stored. */
    private static Lines.Figures count(Map<String, String> options) throws Exception {
        int size = Lines.number(options, "size", 1024);
        Lines.Figures figures = new Lines.Figures(0);
        return figures.timed(1, thread -> {
            for (int partition = 0; partition < PARTITIONS; partition++) {
                try (KafkaConsumer<byte[], byte[]> consumer =
                         consumer(options.get("topic"), partition, 4096, size)) {
                    readOnce(consumer, size, Long.MAX_VALUE, figures);
                }
            }
        });
    }

    /** `most` messages a fetch: Kafka bounds a fetch by its bytes. */
    private static KafkaConsumer<byte[], byte[]> consumer(String topic, int partition, int most, int size) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("max.poll.records", most);
        settings.put("max.partition.fetch.bytes", most * (size + RECORD_OVERHEAD));
        settings.put("fetch.max.wait.ms", 0); // or a read-ahead at the end holds up the next pass
        settings.put("enable.auto.commit", "false");
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.assign(List.of(new TopicPartition(topic, partition)));
        return consumer;
    }

    private static long readOnce(
        KafkaConsumer<byte[], byte[]> consumer, int size, long total, Lines.Figures figures) {
        TopicPartition partition = consumer.assignment().iterator().next();
        long end = consumer.endOffsets(Collections.singleton(partition)).get(partition);
        consumer.seek(partition, 0);
        long offset = 0;
        while (offset < end && figures.count() < total) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(10));
            if (records.isEmpty()) {
                throw new IllegalStateException(partition + " gave nothing at " + offset + " of " + end);
            }
            for (ConsumerRecord<byte[], byte[]> record : records) {
                if (record.offset() != offset++ || record.value().length != size) {
                    throw new IllegalStateException("not what was sent: " + record);
                }
            }
            figures.add(records.count());
        }
        return offset;
    }
}
