package logstore;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;

/** A message to Python: big-endian numbers, and texts and bytes after their length (int32). */
final class Request {
    private static final int COLUMN = 'C', LITERAL = 'L', CALL = 'F', OTHER = '?';

    private final ByteArrayOutputStream memory = new ByteArrayOutputStream();
    private final DataOutputStream out = new DataOutputStream(memory);

    Request(String operation) {
        text(operation);
    }

    byte[] toBytes() {
        return memory.toByteArray();
    }

    Request number(int value) {
        try {
            out.writeInt(value);
            return this;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    Request bytes(byte[] value) {
        number(value.length);
        memory.writeBytes(value);
        return this;
    }

    Request text(String value) {
        return bytes(value.getBytes(StandardCharsets.UTF_8));
    }

    Request texts(String... values) {
        number(values.length);
        for (String value : values) {
            text(value);
        }
        return this;
    }

    Request options(Map<String, String> options) {
        number(options.size());
        options.forEach((name, value) -> text(name).text(value));
        return this;
    }

    Request expressions(Expression[] expressions) {
        number(expressions.length);
        for (Expression expression : expressions) {
            expression(expression);
        }
        return this;
    }

    /** What Python cannot judge goes as {@code OTHER}, and is left to Spark. */
    private void expression(Expression expression) {
        if (expression instanceof NamedReference column) {
            number(COLUMN).texts(column.fieldNames());
        } else if (expression instanceof Literal<?> literal && literal.value() != null) {
            number(LITERAL).text(literal.dataType().simpleString()).text(literal.value().toString());
        } else if (expression instanceof GeneralScalarExpression call) {
            number(CALL).text(call.name()).expressions(call.children());
        } else {
            number(OTHER);
        }
    }
}
