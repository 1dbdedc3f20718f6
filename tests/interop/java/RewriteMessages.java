package logstore.interop;

import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/**
 * Reads messages with Kafka's own classes and writes them again: the name of a message, a version
 * and its bytes in hexadecimal a line on standard input; on standard output what Kafka writes for
 * what it read, or "none" where this release does not have that version.
 */
public final class RewriteMessages {
    private RewriteMessages() {
    }

    public static void main(String[] args) throws Exception {
        HexFormat hex = HexFormat.of();
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder told = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            short version = Short.parseShort(words[1]);
            byte[] rewritten = rewrite(words[0], version, hex.parseHex(words[2]));
            told.append(rewritten == null ? "none" : hex.formatHex(rewritten)).append('\n');
        }
        System.out.print(told);
        System.out.flush();
    }

    private static byte[] rewrite(String name, short version, byte[] bytes) throws Exception {
        Message message;
        try {
            Class<?> kind = Class.forName("org.apache.kafka.common.message." + name + "Data");
            message = (Message) kind.getConstructor().newInstance();
        } catch (ClassNotFoundException error) {
            return null;
        }
        if (version < message.lowestSupportedVersion()
                || version > message.highestSupportedVersion()) {
            return null;
        }
        ByteBuffer source = ByteBuffer.wrap(bytes);
        message.read(new ByteBufferAccessor(source), version);
        if (source.hasRemaining()) {
            throw new IllegalStateException(
                name + " v" + version + " leaves " + source.remaining() + " bytes unread");
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer target = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(target), cache, version);
        return target.array();
    }
}
