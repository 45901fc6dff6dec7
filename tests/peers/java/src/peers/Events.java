package peers;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;

import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;

/** What the driver tells its reader: one JSON object per line on the stdout that the JVM was started with. */
final class Events {
    private static final PrintStream OUT = System.out;
    private static final int BODY_SHOWN = 200;

    private Events() {
    }

    static void emit(Object... pairs) {
        String line = Json.of(map(pairs));
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put((String) pairs[i], pairs[i + 1]);
        }
        return map;
    }

    static Map<String, Object> message(MessageExt message) {
        byte[] body = message.getBody();
        CRC32 crc = new CRC32();
        crc.update(body);
        return map(
            "topic", message.getTopic(),
            "queue", message.getQueueId(),
            "offset", message.getQueueOffset(),
            "physical", message.getCommitLogOffset(),
            "id", uniqueId(message),
            "tag", message.getTags(),
            "keys", message.getKeys(),
            "times", message.getReconsumeTimes(),
            "sysFlag", message.getSysFlag(),
            "born", message.getBornTimestamp(),
            "stored", message.getStoreTimestamp(),
            "storeHost", String.valueOf(message.getStoreHost()),
            "transaction", message.getTransactionId(),
            "body", new String(body, 0, Math.min(body.length, BODY_SHOWN)),
            "size", body.length,
            "crc", crc.getValue(),
            "properties", message.getProperties(),
            "at", System.currentTimeMillis());
    }

    private static String uniqueId(MessageExt message) {
        String id = MessageClientIDSetter.getUniqID(message);
        return id == null ? message.getMsgId() : id;
    }

    static List<Object> messages(Iterable<MessageExt> messages) {
        List<Object> all = new ArrayList<>();
        messages.forEach(message -> all.add(message(message)));
        return all;
    }

    static Map<String, Object> sent(SendResult result) {
        return map(
            "status", String.valueOf(result.getSendStatus()),
            "id", result.getMsgId(),
            "offsetId", result.getOffsetMsgId(),
            "queue", result.getMessageQueue() == null ? null : result.getMessageQueue().getQueueId(),
            "broker", result.getMessageQueue() == null ? null : result.getMessageQueue().getBrokerName(),
            "offset", result.getQueueOffset(),
            "transaction", result.getTransactionId(),
            "recall", Reflected.get(result, "getRecallHandle"));
    }
}
