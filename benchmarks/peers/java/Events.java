import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;

/** The file of events that all engines read (benchmarks/peers/files.py says which bytes), as columns in memory. */
public final class Events {
    private static final byte[] MAGIC = "TOCSINEV".getBytes(StandardCharsets.US_ASCII);

    public final int count;
    public final String[] types;
    public final String[] texts;
    /** Microseconds, strictly increasing, from 0. */
    public final long[] ts;

    public final int[] type;
    /** -1 where there is none. */
    public final int[] text;
    /** A column for each value, NaN where there is none. */
    public final double[][] values;

    public Events(Path path) throws IOException {
        try (FileChannel file = FileChannel.open(path)) {
            ByteBuffer bytes = file.map(FileChannel.MapMode.READ_ONLY, 0, file.size()).order(ByteOrder.LITTLE_ENDIAN);
            for (byte expected : MAGIC) {
                if (bytes.get() != expected) {
                    throw new IOException(path + " is no file of events");
                }
            }
            count = bytes.getInt();
            types = new String[bytes.getInt()];
            texts = new String[bytes.getInt()];
            values = new double[bytes.getInt()][count];
            names(bytes, types);
            names(bytes, texts);
            ts = new long[count];
            type = new int[count];
            text = new int[count];
            // a mapped file is read value by value, as its columns need not be aligned
            for (int event = 0; event < count; event++) {
                ts[event] = bytes.getLong();
            }
            long first = count == 0 ? 0 : ts[0];
            for (int event = 0; event < count; event++) {
                ts[event] -= first;
            }
            for (int event = 0; event < count; event++) {
                type[event] = bytes.getInt();
            }
            for (int event = 0; event < count; event++) {
                text[event] = bytes.getInt();
            }
            for (double[] column : values) {
                for (int event = 0; event < count; event++) {
                    column[event] = bytes.getDouble();
                }
            }
        }
    }

    /** The text of an event, or null. */
    public String textOf(int event) {
        return text[event] < 0 ? null : texts[text[event]];
    }

    private static void names(ByteBuffer bytes, String[] names) {
        for (int name = 0; name < names.length; name++) {
            byte[] encoded = new byte[bytes.getInt()];
            bytes.get(encoded);
            names[name] = new String(encoded, StandardCharsets.UTF_8);
        }
    }
}
