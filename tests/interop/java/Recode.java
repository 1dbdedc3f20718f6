package logstore.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/**
 * Reads messages of the protocol with Kafka's own classes, and writes them again: a line of
 * {@code CLASS VERSION HEX} on standard input, a line of JSON on standard output with what the
 * class found and the bytes that it writes. Tagged fields that it does not know are written again.
 */
public final class Recode {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String ROOM = "org.apache.kafka.common.message.";

    private Recode() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            byte[] bytes = HexFormat.of().parseHex(words[2]);
            System.out.println(JSON.writeValueAsString(
                recoded(words[0], Short.parseShort(words[1]), ByteBuffer.wrap(bytes))));
        }
        System.out.flush();
    }

    private static ObjectNode recoded(String name, short version, ByteBuffer bytes)
            throws Exception {
        Class<?> kind = Class.forName(ROOM + name);
        Message message = (Message) kind.getDeclaredConstructor().newInstance();
        message.read(new ByteBufferAccessor(bytes), version);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(written), cache, version);
        JsonNode found = (JsonNode) Class.forName(ROOM + name + "JsonConverter")
            .getMethod("write", kind, short.class)
            .invoke(null, message, version);
        ObjectNode answer = JSON.createObjectNode();
        answer.set("message", found);
        answer.put("left", bytes.remaining());
        answer.put("bytes", HexFormat.of().formatHex(written.array()));
        return answer;
    }
}
