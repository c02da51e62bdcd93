import io.siddhi.core.SiddhiAppRuntime;
import io.siddhi.core.SiddhiManager;
import io.siddhi.core.event.Event;
import io.siddhi.core.stream.input.InputHandler;
import io.siddhi.core.stream.output.StreamCallback;

/**
 * Siddhi: one application in playback, so that its clock is that of the events.
 *
 * <p>Siddhi counts milliseconds. It is handed microseconds in their place, and the windows of the rules are a thousand
 * times as long, or it could not tell events of one millisecond apart as the others do. What is found goes to a stream
 * Found(number, checked).
 */
public final class SiddhiPeer extends Orders {
    /** Playback begins at a time that is not before the epoch of its timers. */
    private static final long START = 1_700_000_000_000L;

    private final SiddhiManager siddhi = new SiddhiManager();
    private final InputHandler[] handlers;
    private final Object[][] rows;
    private long shift = START;
    private long latest = START;

    private SiddhiPeer(String[] given) throws Exception {
        super(given);
        SiddhiAppRuntime runtime = siddhi.createSiddhiAppRuntime(String.join("\n", rules));
        runtime.addCallback("Found", new StreamCallback() {
            @Override
            public void receive(Event[] found) {
                for (Event match : found) {
                    results.match((Integer) match.getData(0), (Double) match.getData(1));
                }
            }
        });
        runtime.start();
        handlers = new InputHandler[events.types.length];
        for (int type = 0; type < handlers.length; type++) {
            handlers[type] = runtime.getInputHandler(events.types[type]);
        }
        rows = new Object[events.count][];
        for (int event = 0; event < rows.length; event++) {
            Object[] row = new Object[2 + (events.texts.length > 0 ? 1 : 0) + events.values.length];
            row[0] = event;
            int at = 2;
            if (events.texts.length > 0) {
                row[at++] = events.textOf(event);
            }
            for (double[] column : events.values) {
                row[at++] = Double.isNaN(column[event]) ? null : (Object) column[event];
            }
            rows[event] = row;
        }
    }

    @Override
    protected String version() {
        return version("Siddhi", SiddhiManager.class);
    }

    @Override
    protected void begin(int count) {
        shift = latest + PAUSE_US;
        for (int event = 0; event < count; event++) {
            rows[event][1] = shift + events.ts[event];
        }
    }

    @Override
    protected void send(int event) throws InterruptedException {
        latest = shift + events.ts[event];
        handlers[events.type[event]].send(latest, rows[event]);
    }

    public static void main(String[] given) throws Exception {
        new SiddhiPeer(given).serve();
    }
}
