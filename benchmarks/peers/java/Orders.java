import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.locks.LockSupport;

/**
 * An engine's process: obeys the orders of benchmarks/peers/orders.py.
 *
 * <p>Arguments: the file of events, the workload, the way in which rules are written, the file of rules.
 */
public abstract class Orders {
    /** Between the events of two turns so much time passes that no window reaches from one into the next. */
    protected static final long PAUSE_US = 3_600_000_000L;

    protected final Events events;
    protected final String workload;
    protected final String way;
    protected final List<String> rules;
    protected final Results results = new Results();

    protected Orders(String[] given) throws Exception {
        events = new Events(Path.of(given[0]));
        workload = given[1];
        way = given[2];
        rules = Files.readAllLines(Path.of(given[3]));
    }

    /** What was found. Engines tell it from one thread at a time. */
    public static final class Results {
        private long matches;
        private long sum;
        private long start;
        private double nanosBetween;
        private long[] late;

        public synchronized void match(int anchor, double checked) {
            if (late != null && matches < late.length) {
                late[(int) matches] = System.nanoTime() - start - (long) (anchor * nanosBetween);
            }
            matches++;
            sum += Math.round(checked * 100);
        }

        synchronized void clear() {
            matches = 0;
            sum = 0;
            late = null;
        }

        synchronized void pace(double rate, int most) {
            clear();
            nanosBetween = 1e9 / rate;
            late = new long[most];
            begin();
        }

        /** The first event is due now. */
        public synchronized void begin() {
            start = System.nanoTime();
        }

        /** When an event is due, of System.nanoTime. */
        public long due(int event) {
            return start + (long) (event * nanosBetween);
        }

        synchronized String latency() {
            long[] found = Arrays.copyOf(late, (int) Math.min(matches, late.length));
            Arrays.sort(found);
            return String.format(
                    Locale.ROOT, "{\"p50_us\": %.3f, \"p99_us\": %.3f, \"matches\": %d}", at(found, 0.5), at(found, 0.99), matches);
        }

        private static double at(long[] sorted, double share) {
            return sorted.length == 0 ? -1 : sorted[(int) (share * (sorted.length - 1))] / 1e3;
        }
    }

    /** The engine's name and version. */
    protected abstract String version();

    /** Prepares a turn; not timed. */
    protected abstract void begin(int count) throws Exception;

    /** Hands over one event. */
    protected abstract void send(int event) throws Exception;

    /** All events of a turn; how many nanoseconds it took. */
    protected long turn(int count) throws Exception {
        long start = System.nanoTime();
        for (int event = 0; event < count; event++) {
            send(event);
        }
        return System.nanoTime() - start;
    }

    /** All events of a turn, each when it is due. */
    protected void paced(int count, double rate) throws Exception {
        for (int event = 0; event < count; event++) {
            long due = results.due(event);
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                if (left > 100_000) {
                    LockSupport.parkNanos(left - 50_000);
                }
            }
            send(event);
        }
    }

    public final void serve() throws Exception {
        answer("ready", "{\"version\": \"" + version() + " on Java " + System.getProperty("java.version") + "\"}");
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] parts = order.split(" ");
            int count = Integer.parseInt(parts[1]);
            begin(count);
            if (parts[0].equals("run")) {
                results.clear();
                long cpu = system.getProcessCpuTime();
                double seconds = turn(count) / 1e9;
                double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
                answer(
                        "ran",
                        String.format(
                                Locale.ROOT,
                                "{\"seconds\": %.6f, \"cpu_s\": %.6f, \"matches\": %d, \"sum\": %d}",
                                seconds, cpuSeconds, results.matches, results.sum));
            } else {
                double rate = Double.parseDouble(parts[2]);
                results.pace(rate, count);
                paced(count, rate);
                answer("paced", results.latency());
            }
        }
        System.exit(0);
    }

    /** The version in the name of the file that a class is from. */
    protected static String version(String engine, Class<?> any) {
        String path = any.getProtectionDomain().getCodeSource().getLocation().getPath();
        return engine + path.replaceAll(".*-([0-9.]+)\\.jar", " $1");
    }

    private static void answer(String kind, String json) {
        System.out.println("peers " + kind + " " + json);
        System.out.flush();
    }
}
