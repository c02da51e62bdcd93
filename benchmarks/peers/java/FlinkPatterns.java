import java.io.Serializable;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.WithinType;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;

/**
 * The rules of W1 and W2 as patterns of Flink CEP, as a user would write them, and what passes a filter before them.
 *
 * <p>A pattern follows an event until another of its kind replaces it; followedByAny lets it go on to later anchors.
 * Flink counts milliseconds: it is handed microseconds in their place, and windows are a thousand times as long.
 */
final class FlinkPatterns {
    private FlinkPatterns() {}

    /** An event. */
    public static final class Reading {
        public int number;
        public long at;
        public String type;
        public String text;
        public double first;
        public double second;

        public Reading() {}
    }

    /** The reported values of a match. */
    public static final class Found {
        public int number;
        public double checked;

        public Found() {}

        Found(int number, double checked) {
            this.number = number;
            this.checked = checked;
        }
    }

    /** A test of one event. */
    interface Test extends Serializable {
        boolean holds(Reading reading);

        default Test or(Test other) {
            return reading -> holds(reading) || other.holds(reading);
        }

        default SimpleCondition<Reading> condition() {
            return SimpleCondition.of(this::holds);
        }
    }

    /** A pattern, the name of its anchor and of the event whose value is checked, and the events that can be part. */
    record Rule(Pattern<Reading, ?> pattern, String anchor, String checked, Test concerned) {}

    static Rule fire(String rule) {
        Test hot = reading -> reading.type.equals("Temp") && reading.first > 45;
        Test smoke = reading -> reading.type.equals("Smoke");
        Test rain = reading -> reading.type.equals("Rain");
        Pattern<Reading, Reading> temp = Pattern.<Reading>begin("temp").where(hot.condition());
        Pattern<Reading, Reading> before =
                switch (rule) {
                    case "last" -> temp.notFollowedBy("again").where(hot.condition());
                    case "not" -> temp.notFollowedBy("again or rain").where(hot.or(rain).condition());
                    default -> temp;
                };
        Pattern<Reading, Reading> pattern = before.followedByAny("smoke")
                .where(smoke.condition())
                .within(Duration.ofMillis(rule.equals("each") ? 30_000_000L : 300_000_000L));
        return new Rule(pattern, "smoke", "temp", rule.equals("not") ? hot.or(smoke).or(rain) : hot.or(smoke));
    }

    /**
     * Lines of types and levels, from the anchor backwards. How far an event may be from the one before it is said of
     * each of them, as it holds for that one alone.
     */
    static List<Rule> sequences(List<String> lines) {
        Duration step = Duration.ofMillis(60_000_000L);
        List<Rule> rules = new ArrayList<>();
        for (String line : lines) {
            String[] parts = line.split(" ");
            Test anchor = over(parts[0], parts[1]);
            Test middle = over(parts[2], parts[3]);
            Test oldest = over(parts[4], parts[5]);
            Pattern<Reading, Reading> pattern = Pattern.<Reading>begin("oldest")
                    .where(oldest.condition())
                    .notFollowedBy("oldest again")
                    .where(oldest.condition())
                    .followedByAny("middle")
                    .where(middle.condition())
                    .within(step, WithinType.PREVIOUS_AND_CURRENT)
                    .notFollowedBy("middle again")
                    .where(middle.condition())
                    .followedByAny("anchor")
                    .where(anchor.condition())
                    .within(step, WithinType.PREVIOUS_AND_CURRENT);
            rules.add(new Rule(pattern, "anchor", "oldest", oldest.or(middle).or(anchor)));
        }
        return rules;
    }

    private static Test over(String type, String level) {
        double least = Double.parseDouble(level);
        return reading -> reading.type.equals(type) && reading.first > least;
    }

    /** Lines of a type, then columns, operators and constants. */
    static Test filter(String line) {
        String[] parts = line.split(" ");
        Test one = condition(parts[1], parts[2], parts[3]);
        Test other = condition(parts[4], parts[5], parts[6]);
        return reading -> one.holds(reading) && other.holds(reading);
    }

    private static Test condition(String column, String operator, String constant) {
        if (column.equals("site")) {
            return reading -> constant.equals(reading.text);
        }
        double limit = Double.parseDouble(constant);
        boolean isFirst = column.equals("a");
        if (operator.equals(">")) {
            return reading -> (isFirst ? reading.first : reading.second) > limit;
        }
        return reading -> (isFirst ? reading.first : reading.second) < limit;
    }

    /**
     * W1 as MATCH_RECOGNIZE. Its patterns are of adjacent rows, so that those between are named; each Temp is found at
     * most once, with the first Smoke after it.
     */
    static String sql(String rule) {
        String hot = "%1$s.type = 'Temp' AND %1$s.first > 45";
        String between =
                switch (rule) {
                    case "last" -> "NOT (" + String.format(hot, "N") + ")";
                    case "not" -> "NOT (" + String.format(hot, "N") + ") AND N.type <> 'Rain'";
                    default -> "N.type <> 'Smoke'";
                };
        return """
                SELECT number, checked FROM Events MATCH_RECOGNIZE (
                  PARTITION BY text ORDER BY rowtime
                  MEASURES S.number AS number, T.first AS checked
                  ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW
                  PATTERN (T N*? S) WITHIN INTERVAL '%s' MINUTE(4)
                  DEFINE T AS %s, N AS %s, S AS S.type = 'Smoke')
                """
                .formatted(rule.equals("each") ? "500" : "5000", String.format(hot, "T"), between)
                .replace("text", "`text`")
                .replace(".type", ".`type`")
                .replace(".first", ".`first`")
                .replace(".number", ".`number`")
                .replace("AS number", "AS `number`")
                .replace("SELECT number", "SELECT `number`");
    }
}
