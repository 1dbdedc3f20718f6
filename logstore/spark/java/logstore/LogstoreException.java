package logstore;

/** Reading failed; the message says which file, where and why. */
public final class LogstoreException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    LogstoreException(String message) {
        super(message);
    }

    LogstoreException(String message, Throwable cause) {
        super(message, cause);
    }
}
