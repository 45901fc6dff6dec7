package peers;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin inside this JVM: the same entry point as the shell script's, its text caught instead of printed. */
final class Admin {
    private static final Object ONE_AT_A_TIME = new Object(); // System.out is the whole JVM's

    private Admin() {
    }

    static void register(Map<String, ClientDriver.Command> commands) {
        commands.put("admin", options -> Events.map("text", run(options.need("args").split("\n"))));
    }

    private static String run(String[] args) {
        synchronized (ONE_AT_A_TIME) {
            PrintStream out = System.out;
            PrintStream err = System.err;
            ByteArrayOutputStream text = new ByteArrayOutputStream();
            PrintStream both = new PrintStream(text, true, StandardCharsets.UTF_8);
            System.setOut(both);
            System.setErr(both);
            try {
                MQAdminStartup.main0(args, null);
            } finally {
                System.setOut(out);
                System.setErr(err);
                System.clearProperty("rocketmq.namesrv.addr"); // mqadmin leaves the last -n behind
            }
            return text.toString(StandardCharsets.UTF_8);
        }
    }
}
