package peers;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * Apache RocketMQ's name server and broker together in this JVM, everything inside one folder.
 *
 * <p>Arguments: name server port (0: none), broker port (0: none), folder, then any broker setting as key=value. Prints
 * READY once both have started; SIGTERM stops them cleanly.
 */
public final class ApacheBroker {
    private ApacheBroker() {
    }

    public static void main(String[] args) throws Exception {
        int nameServerPort = Integer.parseInt(args[0]);
        int brokerPort = Integer.parseInt(args[1]);
        Path folder = Path.of(args[2]).toAbsolutePath();
        useAsHome(folder);
        if (nameServerPort > 0) {
            Path settings = write(folder.resolve("conf/namesrv.conf"), List.of(
                "listenPort=" + nameServerPort,
                "bindAddress=127.0.0.1",
                "kvConfigPath=" + folder.resolve("namesrv/kvConfig.json")));
            NamesrvStartup.main(new String[] {"-c", settings.toString()});
        }
        if (brokerPort > 0) {
            List<String> settings = new ArrayList<>(List.of(
                "brokerClusterName=DefaultCluster",
                "brokerName=broker-a",
                "brokerId=0",
                "bindAddress=127.0.0.1",
                "brokerIP1=127.0.0.1",
                "brokerIP2=127.0.0.1",
                "listenPort=" + brokerPort,
                "storePathRootDir=" + folder.resolve("store"),
                "enablePropertyFilter=true"));
            if (nameServerPort > 0) {
                settings.add("namesrvAddr=127.0.0.1:" + nameServerPort);
            }
            for (int i = 3; i < args.length; i++) {
                settings.add(args[i]); // the last of two equal keys wins
            }
            Path file = write(folder.resolve("conf/broker.conf"), settings);
            BrokerStartup.main(new String[] {"-c", file.toString()});
        }
        System.out.println("READY");
        Thread.currentThread().join();
    }

    /** Both read user.home and rocketmq.home.dir for logs and stores; 4.9 also insists on log settings. */
    static void useAsHome(Path folder) throws IOException {
        System.setProperty("user.home", folder.toString());
        System.setProperty("rocketmq.home.dir", folder.toString());
        for (String part : List.of("namesrv", "broker", "tools")) {
            write(folder.resolve("conf/logback_" + part + ".xml"), List.of(
                "<configuration>",
                "<appender name='err' class='ch.qos.logback.core.ConsoleAppender'>",
                "<target>System.err</target><encoder><pattern>%d %p %c{0} %m%n</pattern></encoder>",
                "</appender>",
                "<root level='WARN'><appender-ref ref='err'/></root>",
                "</configuration>"));
        }
    }

    private static Path write(Path file, List<String> lines) throws IOException {
        Files.createDirectories(file.getParent());
        return Files.write(file, lines);
    }
}
