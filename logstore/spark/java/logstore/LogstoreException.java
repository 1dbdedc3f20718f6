package logstore;

import org.apache.spark.QueryContext;
import org.apache.spark.api.python.PythonException;
import scala.collection.immutable.Map.Map2;

/**
 * Reading failed; the sentence says which file, where and why. PySpark shows it as what it is for the
 * Python source, a PythonException.
 */
public final class LogstoreException extends PythonException {
    private static final long serialVersionUID = 2L;

    private final String sentence;

    LogstoreException(String sentence) {
        this(sentence, null);
    }

    LogstoreException(String sentence, Throwable cause) {
        super(
            "PYTHON_EXCEPTION",
            new Map2<>("msg", "logstore cannot be read", "traceback", sentence),
            cause, new QueryContext[0], "");
        this.sentence = sentence;
    }

    String sentence() {
        return sentence;
    }
}
