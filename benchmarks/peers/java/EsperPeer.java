import com.espertech.esper.common.client.EPCompiled;
import com.espertech.esper.common.client.EventBean;
import com.espertech.esper.common.client.EventSender;
import com.espertech.esper.common.client.configuration.Configuration;
import com.espertech.esper.compiler.client.CompilerArguments;
import com.espertech.esper.compiler.client.EPCompilerProvider;
import com.espertech.esper.runtime.client.EPDeployment;
import com.espertech.esper.runtime.client.EPRuntime;
import com.espertech.esper.runtime.client.EPRuntimeProvider;
import com.espertech.esper.runtime.client.EPStatement;
import java.util.concurrent.TimeUnit;

/**
 * Esper: an event type for each type, as arrays of objects; its clock is that of the events, in microseconds.
 *
 * <p>The rules are statements; those that are named found... tell `number`, the anchor, and `checked`.
 */
public final class EsperPeer extends Orders {
    private final EPRuntime runtime;
    private final EventSender[] senders;
    private final Object[][] rows;
    private long shift = PAUSE_US;
    private long latest;

    private EsperPeer(String[] given) throws Exception {
        super(given);
        String[] names;
        Object[] kinds;
        switch (workload.substring(0, 2)) {
            case "W1" -> {
                names = new String[] {"number", "area", "value"};
                kinds = new Object[] {Integer.class, String.class, Double.class};
            }
            case "W2" -> {
                names = new String[] {"number", "value"};
                kinds = new Object[] {Integer.class, Double.class};
            }
            default -> {
                names = new String[] {"number", "site", "a", "b"};
                kinds = new Object[] {Integer.class, String.class, Double.class, Double.class};
            }
        }
        Configuration configuration = new Configuration();
        for (String type : types()) {
            configuration.getCommon().addEventType(type, names, kinds);
        }
        configuration.getCommon().getTimeSource().setTimeUnit(TimeUnit.MICROSECONDS);
        configuration.getRuntime().getThreading().setInternalTimerEnabled(false);
        EPCompiled compiled = EPCompilerProvider.getCompiler()
                .compile(String.join(";\n", rules), new CompilerArguments(configuration));
        runtime = EPRuntimeProvider.getRuntime("peers", configuration);
        runtime.initialize();
        runtime.getEventService().advanceTime(0);
        EPDeployment deployed = runtime.getDeploymentService().deploy(compiled);
        for (EPStatement statement : deployed.getStatements()) {
            if (statement.getName().startsWith("found")) {
                statement.addListener((added, removed, of, in) -> {
                    for (EventBean match : added) {
                        results.match((Integer) match.get("number"), (Double) match.get("checked"));
                    }
                });
            }
        }
        senders = new EventSender[events.types.length];
        for (int type = 0; type < senders.length; type++) {
            senders[type] = runtime.getEventService().getEventSender(events.types[type]);
        }
        rows = new Object[events.count][];
        for (int event = 0; event < rows.length; event++) {
            rows[event] = new Object[names.length];
            rows[event][0] = event;
            int at = 1;
            if (events.texts.length > 0) {
                rows[event][at++] = events.textOf(event);
            }
            for (double[] column : events.values) {
                rows[event][at++] = Double.isNaN(column[event]) ? null : (Object) column[event];
            }
        }
    }

    /** All types of the workload: the file may lack rare ones that rules name. */
    private String[] types() {
        if (!workload.equals("W2")) {
            return events.types;
        }
        String[] all = new String[120];
        for (int type = 0; type < all.length; type++) {
            all[type] = "T" + type;
        }
        return all;
    }

    @Override
    protected String version() {
        return version("Esper", EPRuntime.class);
    }

    @Override
    protected void begin(int count) {
        shift = latest + PAUSE_US;
        runtime.getEventService().advanceTime(shift - 1);
    }

    @Override
    protected void send(int event) {
        latest = shift + events.ts[event];
        runtime.getEventService().advanceTime(latest);
        senders[events.type[event]].sendEvent(rows[event]);
    }

    public static void main(String[] given) throws Exception {
        new EsperPeer(given).serve();
    }
}
