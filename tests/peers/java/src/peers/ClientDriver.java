package peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * RocketMQ's Java clients by remote control, so that one JVM serves a whole test run.
 *
 * <p>Argument: a folder for logs and local offsets. Each line on stdin is {@code id TAB command TAB key=value ...}
 * (values URL-encoded) and is answered by one line of JSON with that id, {@code {"re":id,"ok":true,...}} or
 * {@code {"re":id,"ok":false,"error":"..."}}. What clients receive in between comes as lines with an "event". Commands
 * run at the same time; the end of stdin stops every client and the JVM.
 */
public final class ClientDriver {
    /** One command: its options in, the pairs of its answer out. */
    interface Command {
        Map<String, Object> run(Options options) throws Throwable;
    }

    private static final Map<String, Command> COMMANDS = new ConcurrentHashMap<>();
    private static final Map<String, Runnable> RUNNING = new ConcurrentHashMap<>();

    private ClientDriver() {
    }

    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]).toAbsolutePath();
        ApacheBroker.useAsHome(folder);
        System.setProperty("rocketmq.client.localOffsetStoreDir", folder.resolve("offsets").toString());
        Producers.register(COMMANDS);
        PushConsumers.register(COMMANDS);
        PullConsumers.register(COMMANDS);
        Admin.register(COMMANDS);
        COMMANDS.put("stop", options -> {
            stop(options.need("name"));
            return Events.map();
        });
        Events.emit("event", "ready");

        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            threads.execute(() -> answer(words));
        }
        RUNNING.keySet().parallelStream().forEach(ClientDriver::stop);
        System.exit(0);
    }

    /** Remembers how to stop a started client by the name that later commands use. */
    static void started(String name, Runnable stop) {
        if (RUNNING.putIfAbsent(name, stop) != null) {
            stop.run();
            throw new IllegalStateException("a client named " + name + " is already running");
        }
    }

    private static void stop(String name) {
        Runnable stop = RUNNING.remove(name);
        if (stop == null) {
            throw new IllegalArgumentException("no client named " + name + " is running");
        }
        stop.run();
    }

    private static void answer(String[] words) {
        Map<String, Object> answer = Events.map("re", Integer.parseInt(words[0]), "ok", true);
        try {
            Command command = COMMANDS.get(words[1]);
            if (command == null) {
                throw new IllegalArgumentException("no such command: " + words[1]);
            }
            answer.putAll(command.run(new Options(words, 2)));
        } catch (Throwable error) {
            answer.put("ok", false);
            answer.put("error", chain(error));
        }
        Events.emit(answer.entrySet().stream()
            .flatMap(entry -> java.util.stream.Stream.of(entry.getKey(), entry.getValue())).toArray());
    }

    private static String chain(Throwable error) {
        StringBuilder text = new StringBuilder();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            text.append(text.length() == 0 ? "" : " <- ").append(cause);
        }
        return text.toString();
    }
}
