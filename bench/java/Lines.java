import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/** What the Java drivers share: commands by line, one JSON object per command, and its figures. */
final class Lines {
    interface Mode {
        Figures run(Map<String, String> options) throws Exception;
    }

    /** What one thread of a row does. */
    interface Work {
        void run(int thread) throws Exception;
    }

    private Lines() {
    }

    static void serve(Map<String, Mode> modes) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // libraries print there
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.trim().split(" ");
            Map<String, String> options = new HashMap<>();
            for (int i = 1; i < words.length; i++) {
                options.put(words[i].split("=", 2)[0], words[i].split("=", 2)[1]);
            }
            Figures figures;
            try {
                figures = modes.get(words[0]).run(options);
            } catch (Exception e) {
                e.printStackTrace();
                figures = new Figures(0);
                figures.bad(e);
            }
            answers.println(figures.json());
        }
        System.exit(0);
    }

    static int number(Map<String, String> options, String name, int fallback) {
        return options.containsKey(name) ? Integer.parseInt(options.get(name)) : fallback;
    }

    static byte[] body(int size) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) ('a' + (i * 7 + 3) % 26);
        }
        return body;
    }

    /** Counts and times of one row; callbacks of any thread may add to it. */
    static final class Figures {
        private final long[] latencies;
        private final AtomicLong done = new AtomicLong();
        private final AtomicLong bad = new AtomicLong();
        private volatile String error = "";
        private long begun = System.nanoTime();
        private long ended;

        Figures(int capacity) {
            latencies = new long[capacity];
        }

        /** One acknowledged message. */
        void good(long nanoseconds) {
            latencies[(int) done.getAndIncrement()] = nanoseconds;
        }

        long add(long messages) {
            return done.addAndGet(messages);
        }

        long count() {
            return done.get();
        }

        /** A row that has failed need not go on. */
        boolean allGood() {
            return bad.get() == 0;
        }

        void bad(Object what) {
            if (bad.getAndIncrement() == 0) {
                error = String.valueOf(what);
            }
        }

        /** Runs the work in so many threads and takes the time. */
        Figures timed(int threads, Work work) throws InterruptedException {
            Thread[] all = new Thread[threads];
            begun = System.nanoTime();
            for (int i = 0; i < threads; i++) {
                int thread = i;
                all[i] = new Thread(() -> {
                    try {
                        work.run(thread);
                    } catch (Exception e) {
                        e.printStackTrace();
                        bad(e);
                    }
                });
                all[i].start();
            }
            for (Thread thread : all) {
                thread.join();
            }
            ended = System.nanoTime();
            return this;
        }

        String json() {
            long n = done.get();
            double seconds = Math.max(ended - begun, 1) / 1e9;
            int measured = (int) Math.min(n, latencies.length);
            Arrays.sort(latencies, 0, measured);
            return String.format(
                Locale.ROOT,
                "{\"n\":%d,\"secs\":%.4f,\"per_s\":%.0f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"bad\":%d,\"error\":\"%s\"}",
                n, seconds, n / seconds, percentile(measured, 0.5), percentile(measured, 0.99), bad.get(),
                error.replaceAll("[\"\\\\\\p{Cntrl}]", " "));
        }

        private double percentile(int measured, double share) {
            return measured == 0 ? 0 : latencies[(int) ((measured - 1) * share)] / 1e3;
        }
    }
}
