import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.HeartbeatManagerOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.util.Collector;

/**
 * Flink on a local mini cluster, a job for each turn: from a source of one task that makes events from memory, by area,
 * to a sink that counts. Its time begins with the first event and ends when the last sink is closed, without the start
 * of the job.
 *
 * <p>Ways: cep, filtered (a filter in front of the patterns), sql, flatmap; then the parallelism; then, for latencies,
 * `tuned`, which has watermarks and buffers sent each millisecond.
 */
public final class FlinkPeer extends Orders {
    private static Events shared;
    private static Results found;
    private static volatile boolean isPaced;
    private static final AtomicLong BEGUN = new AtomicLong();
    private static final AtomicLong ENDED = new AtomicLong();

    private final String kind;
    private final int parallelism;
    private final boolean isTuned;
    private final MiniCluster cluster;

    private FlinkPeer(String[] given) throws Exception {
        super(given);
        shared = events;
        found = results;
        String[] parts = way.split("-");
        kind = parts[0];
        parallelism = Integer.parseInt(parts[1]);
        isTuned = parts.length > 2;
        Configuration settings = new Configuration();
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(256));
        settings.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(256));
        settings.set(RestOptions.BIND_PORT, "0");
        settings.set(RestOptions.ADDRESS, "localhost");
        // Between turns the process stands still; none of its parts is to take another for dead.
        settings.set(HeartbeatManagerOptions.HEARTBEAT_TIMEOUT, Duration.ofHours(1));
        cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setConfiguration(settings)
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(parallelism)
                .build());
        cluster.start();
    }

    @Override
    protected String version() {
        return "Flink " + EnvironmentInformation.getVersion();
    }

    @Override
    protected void begin(int count) {
        isPaced = false;
        BEGUN.set(0);
        ENDED.set(0);
    }

    @Override
    protected void send(int event) {
        throw new UnsupportedOperationException("a job reads its events");
    }

    @Override
    protected long turn(int count) throws Exception {
        cluster.executeJobBlocking(job(count).getStreamGraph().getJobGraph());
        return ENDED.get() - BEGUN.get();
    }

    @Override
    protected void paced(int count, double rate) throws Exception {
        isPaced = true;
        cluster.executeJobBlocking(job(count).getStreamGraph().getJobGraph());
    }

    private StreamExecutionEnvironment job(int count) {
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(parallelism);
        if (isTuned) {
            job.getConfig().setAutoWatermarkInterval(1);
            job.setBufferTimeout(1);
        }
        var source = new DataGeneratorSource<>(FlinkPeer::reading, count, TypeInformation.of(FlinkPatterns.Reading.class));
        DataStream<FlinkPatterns.Reading> readings = job.fromSource(
                        source,
                        WatermarkStrategy.<FlinkPatterns.Reading>forMonotonousTimestamps()
                                .withTimestampAssigner((reading, before) -> reading.at),
                        "events")
                .setParallelism(1);
        switch (kind) {
            case "sql" -> counted(sql(job, readings));
            case "flatmap" -> counted(readings.rebalance().flatMap(new Filters(rules)));
            default -> {
                for (FlinkPatterns.Rule rule : patterns()) {
                    counted(matches(readings, rule));
                }
            }
        }
        return job;
    }

    private List<FlinkPatterns.Rule> patterns() {
        return workload.equals("W2")
                ? FlinkPatterns.sequences(rules)
                : List.of(FlinkPatterns.fire(workload.substring(3)));
    }

    private DataStream<FlinkPatterns.Found> matches(DataStream<FlinkPatterns.Reading> readings, FlinkPatterns.Rule rule) {
        FlinkPatterns.Test concerned = rule.concerned();
        DataStream<FlinkPatterns.Reading> some =
                kind.equals("filtered") ? readings.filter(concerned::holds).setParallelism(1) : readings;
        String anchor = rule.anchor();
        String checked = rule.checked();
        DataStream<FlinkPatterns.Reading> keyed = workload.equals("W2") ? some : some.keyBy(reading -> reading.text);
        return CEP.pattern(keyed, rule.pattern()).process(new PatternProcessFunction<>() {
            @Override
            public void processMatch(
                    Map<String, List<FlinkPatterns.Reading>> match, Context context, Collector<FlinkPatterns.Found> out) {
                out.collect(new FlinkPatterns.Found(
                        match.get(anchor).get(0).number, match.get(checked).get(0).first));
            }
        }, TypeInformation.of(FlinkPatterns.Found.class));
    }

    private DataStream<FlinkPatterns.Found> sql(
            StreamExecutionEnvironment job, DataStream<FlinkPatterns.Reading> readings) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(job);
        Schema schema = Schema.newBuilder()
                .column("number", "INT NOT NULL")
                .column("type", "STRING")
                .column("text", "STRING")
                .column("first", "DOUBLE NOT NULL")
                .columnByMetadata("rowtime", "TIMESTAMP_LTZ(3)")
                .watermark("rowtime", "SOURCE_WATERMARK()")
                .build();
        tables.createTemporaryView("Events", tables.fromDataStream(readings, schema));
        return tables.toDataStream(tables.sqlQuery(FlinkPatterns.sql(workload.substring(3))))
                .map(row -> new FlinkPatterns.Found((Integer) row.getField(0), (Double) row.getField(1)))
                .returns(FlinkPatterns.Found.class);
    }

    private static void counted(DataStream<FlinkPatterns.Found> matches) {
        matches.map(new Counting()).sinkTo(new DiscardingSink<>());
    }

    /** The event of a number, when it is due. */
    private static FlinkPatterns.Reading reading(Long number) {
        int event = (int) (long) number;
        if (event == 0) {
            BEGUN.set(System.nanoTime());
            found.begin();
        }
        if (isPaced) {
            long due = found.due(event);
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                if (left > 100_000) {
                    LockSupport.parkNanos(left - 50_000);
                }
            }
        }
        FlinkPatterns.Reading reading = new FlinkPatterns.Reading();
        reading.number = event;
        reading.at = shared.ts[event];
        reading.type = shared.types[shared.type[event]];
        reading.text = shared.textOf(event);
        reading.first = shared.values[0][event];
        reading.second = shared.values.length > 1 ? shared.values[1][event] : Double.NaN;
        return reading;
    }

    /** Counts what comes, and says when there is no more. */
    private static final class Counting extends RichMapFunction<FlinkPatterns.Found, Integer> {
        @Override
        public Integer map(FlinkPatterns.Found match) {
            found.match(match.number, match.checked);
            return match.number;
        }

        @Override
        public void close() {
            ENDED.accumulateAndGet(System.nanoTime(), Math::max);
        }
    }

    /** All filters of W3, looked up by type. */
    private static final class Filters implements FlatMapFunction<FlinkPatterns.Reading, FlinkPatterns.Found> {
        private final ArrayList<String> lines;
        private transient Map<String, FlinkPatterns.Test[]> byType;

        Filters(List<String> lines) {
            this.lines = new ArrayList<>(lines);
        }

        @Override
        public void flatMap(FlinkPatterns.Reading reading, Collector<FlinkPatterns.Found> out) {
            if (byType == null) {
                Map<String, List<FlinkPatterns.Test>> tests = new HashMap<>();
                for (String line : lines) {
                    String type = line.substring(0, line.indexOf(' '));
                    tests.computeIfAbsent(type, any -> new ArrayList<>()).add(FlinkPatterns.filter(line));
                }
                byType = new HashMap<>();
                tests.forEach((type, some) -> byType.put(type, some.toArray(new FlinkPatterns.Test[0])));
            }
            for (FlinkPatterns.Test test : byType.get(reading.type)) {
                if (test.holds(reading)) {
                    out.collect(new FlinkPatterns.Found(reading.number, reading.first));
                }
            }
        }
    }

    public static void main(String[] given) throws Exception {
        new FlinkPeer(given).serve();
    }
}
