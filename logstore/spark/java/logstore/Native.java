package logstore;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;
import org.apache.spark.SparkEnv;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The library of {@code logstore_jni.c}, where the jar has one for this platform. */
final class Native {
    private static final Logger LOG = LoggerFactory.getLogger(Native.class);
    private static final boolean LOADED = load();

    /** The columns of {@code create}. */
    static final int KEYS = 1, VALUES = 2, TIMESTAMPS = 4, HEADERS = 8, RUNS = 16;

    /** The extremes of {@code create}. */
    static final int MIN_OFFSET = 1, MAX_OFFSET = 2, MIN_TIMESTAMP = 4, MAX_TIMESTAMP = 8;

    /** What {@code run} and {@code section} answer; any other number is a bad batch. */
    static final int END = 0, FULL = 1, SPECIAL = 2, LIMIT = 3;

    private Native() {}

    /** Whether tasks of this JVM can read without Python. */
    static boolean isThere() {
        return LOADED;
    }

    /** Whether the driver's configuration wants it. */
    static boolean isWanted() {
        return SparkEnv.get().conf().getBoolean("spark.logstore.native", true);
    }

    private static boolean load() {
        String name = "/native/" + platform() + "/liblogstore.so";
        try (InputStream library = Native.class.getResourceAsStream(name)) {
            if (library == null) {
                LOG.warn("Python workers read all: the jar of logstore has no {}", name);
                return false;
            }
            Path copy = Files.createTempFile("liblogstore", ".so");
            try {
                Files.copy(library, copy, StandardCopyOption.REPLACE_EXISTING);
                System.load(copy.toString());
            } finally {
                Files.delete(copy); // what is loaded stays
            }
            return true;
        } catch (IOException | UnsatisfiedLinkError error) {
            LOG.warn("Python workers read all: {} of logstore's jar: {}", name, error.toString());
            return false;
        }
    }

    /** As {@code platform} of {@code spark_jar.py}. */
    private static String platform() {
        boolean linux = System.getProperty("os.name").toLowerCase(Locale.ROOT).equals("linux");
        String machine = System.getProperty("os.arch");
        if (machine.equals("amd64")) {
            machine = "x86_64";
        } else if (machine.equals("aarch64") && !linux) {
            machine = "arm64";
        }
        return (linux ? "linux-" : "darwin-") + machine;
    }

    static native int open(byte[] path);

    static native void close(int descriptor);

    static native boolean identity(int descriptor, long[] identity);

    static native long read(int descriptor, long address, long size, long position);

    static native long create(int columns, boolean isSummary, int extremes);

    static native void destroy(long reader);

    static native boolean bound(long reader, long[] bounds, long[] aborted);

    static native int run(
        long reader, long data, long size, long origin, long maxRows, long maxBytes, long[] state);

    static native long order(long data, long size, long below, long[] last);

    static native boolean isSound(long data, long size);

    static native int section(
        long reader, long data, long size, long payload, long payloadSize, long position,
        long[] state);

    static native void summary(long reader, long[] numbers);

    static native int runs(long reader, long[] runs);

    static native boolean finish(long reader, long[] blocks);

    static native void free(long address, long capacity);

    static native long micros(long times, long count, long valid);

    static native long emptyLists(long offsets, long count, long valid);

    static native boolean isAscii(long data, long size);
}
