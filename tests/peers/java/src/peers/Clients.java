package peers;

import java.util.concurrent.atomic.AtomicInteger;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** What all clients of the driver have in common: where they connect and under which name they are known. */
final class Clients {
    private static final AtomicInteger NUMBER = new AtomicInteger();

    private Clients() {
    }

    /** What signs a client's requests; null when it has no user. */
    static RPCHook hook(Options options) {
        if (!options.has("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(options.need("accessKey"), options.need("secretKey")));
    }

    static void configure(ClientConfig client, Options options) {
        client.setNamesrvAddr(options.need("namesrv"));
        client.setClientIP("127.0.0.1");
        client.setInstanceName(options.get("instance", "driver-" + NUMBER.incrementAndGet()));
        client.setVipChannelEnabled(options.is("vip"));
        if (options.has("poll")) {
            client.setPollNameServerInterval(options.number("poll", 0));
        }
        if (options.has("heartbeat")) {
            client.setHeartbeatBrokerInterval(options.number("heartbeat", 0));
        }
        if (options.has("heartbeatV2")) {
            Reflected.set(client, "setUseHeartbeatV2", boolean.class, options.is("heartbeatV2"));
        }
    }
}
