import io.siddhi.core.SiddhiAppRuntime;
import io.siddhi.core.SiddhiManager;
import io.siddhi.core.event.Event;
import io.siddhi.core.stream.input.InputHandler;
import io.siddhi.core.stream.output.StreamCallback;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Siddhi as a node of VISIRI runs it (Section 3.1 of its paper): an engine for each query, behind a forwarding table.
 *
 * <p>Arguments: a file with an application in each line, as "stream TAB output TAB text"; a file of events, each a stream's
 * number, a time in milliseconds and five doubles, little-endian. Prints how many seconds loading took. Then, for each
 * line it reads, a number of threads, it sends all events, streams dealt over so many threads, and prints the seconds
 * and the rows of each application.
 */
public final class OneRuntimePerQuery {
    private static final int VALUES = 5;
    private static final int BYTES = 4 + 8 + 8 * VALUES;

    /** Counts what one query puts out. */
    private static final class Counter extends StreamCallback {
        long rows;

        @Override
        public void receive(Event[] events) {
            rows += events.length;
        }
    }

    public static void main(String[] given) throws Exception {
        List<String> applications = Files.readAllLines(Path.of(given[0]));
        ByteBuffer events = ByteBuffer.wrap(Files.readAllBytes(Path.of(given[1]))).order(ByteOrder.LITTLE_ENDIAN);

        long begin = System.nanoTime();
        SiddhiManager siddhi = new SiddhiManager();
        List<SiddhiAppRuntime> runtimes = new ArrayList<>();
        List<Counter> counters = new ArrayList<>();
        List<List<InputHandler>> table = new ArrayList<>();
        for (String line : applications) {
            String[] parts = line.split("\t");
            int stream = Integer.parseInt(parts[0]);
            SiddhiAppRuntime runtime = siddhi.createSiddhiAppRuntime(parts[2]);
            Counter counter = new Counter();
            runtime.addCallback(parts[1], counter);
            while (table.size() <= stream) {
                table.add(new ArrayList<>());
            }
            table.get(stream).add(runtime.getInputHandler("stream" + stream));
            runtime.start();
            runtimes.add(runtime);
            counters.add(counter);
        }
        InputHandler[][] forwarding = new InputHandler[table.size()][];
        for (int stream = 0; stream < forwarding.length; stream++) {
            forwarding[stream] = table.get(stream).toArray(new InputHandler[0]);
        }
        double loading = (System.nanoTime() - begin) / 1e9;

        int count = events.capacity() / BYTES;
        int[] streams = new int[count];
        long[] ts = new long[count];
        Object[][] values = new Object[count][];
        for (int event = 0; event < count; event++) {
            streams[event] = events.getInt();
            ts[event] = events.getLong();
            values[event] = new Object[VALUES];
            for (int value = 0; value < VALUES; value++) {
                values[event][value] = events.getDouble();
            }
        }

        System.out.printf("loaded %.3f%n", loading);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            int threads = Integer.parseInt(order.trim());
            counters.forEach(counter -> counter.rows = 0);
            long start = System.nanoTime();
            List<Thread> running = new ArrayList<>();
            for (int part = 0; part < threads; part++) {
                int mine = part;
                Thread thread = new Thread(() -> send(forwarding, streams, ts, values, mine, threads));
                thread.start();
                running.add(thread);
            }
            for (Thread thread : running) {
                thread.join();
            }
            StringBuilder line = new StringBuilder(String.format("sent %.6f", (System.nanoTime() - start) / 1e9));
            counters.forEach(counter -> line.append(' ').append(counter.rows));
            System.out.println(line);
        }
        runtimes.forEach(SiddhiAppRuntime::shutdown);
        siddhi.shutdown();
        System.exit(0);
    }

    private static void send(
            InputHandler[][] forwarding, int[] streams, long[] ts, Object[][] values, int mine, int threads) {
        try {
            for (int event = 0; event < streams.length; event++) {
                int stream = streams[event];
                if (stream >= forwarding.length || stream % threads != mine) {
                    continue;
                }
                for (InputHandler handler : forwarding[stream]) {
                    handler.send(ts[event], values[event]);
                }
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
