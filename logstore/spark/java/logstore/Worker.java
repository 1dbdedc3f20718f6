package logstore;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ReadableByteChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.api.python.PythonWorker;

/**
 * A Python process of Spark's daemon, for one request, or for all of a stream. It answers with a
 * number that says what follows. Released, it waits for the next one, until Spark ends it for idleness.
 */
final class Worker {
    enum Answer {
        END,
        BATCH,
        ROWS,
        ERROR
    }

    private static final int SIZE_MAX = 1 << 30;
    private static final long LOOK_MS = 1000;
    private static final int ATTEMPTS = 20;

    private final Python python;
    private final PythonWorker process;
    private final SocketChannel socket;
    private final TaskContext task = TaskContext.get();
    private boolean held = true;

    private Worker(Python python, PythonWorker process) {
        this.python = python;
        this.process = process;
        this.socket = process.channel();
    }

    /** One that waits, or a new one. */
    static Worker start(Python python) {
        CompletableFuture<PythonWorker> started = new CompletableFuture<>();
        SparkEnv env = SparkEnv.get();
        Instant asked = Instant.now();
        Thread starter = new Thread(() -> start(env, python, started), "logstore-python-start");
        starter.setDaemon(true);
        starter.start();
        String reason;
        Throwable cause = null;
        try {
            return new Worker(python, started.get(python.startSeconds(), TimeUnit.SECONDS));
        } catch (TimeoutException error) {
            endDaemonsSince(asked);
            reason = "nothing heard of it for " + python.startSeconds()
                + " s (spark.logstore.pythonStartSeconds)";
        } catch (ExecutionException error) {
            reason = error.getCause().toString();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt(); // Spark's threads may put it off
            reason = "interrupted";
            cause = error;
        }
        LogstoreException failure = new LogstoreException(
            "no Python worker with " + python.executable() + ": " + reason, cause);
        if (!started.completeExceptionally(failure) && !started.isCompletedExceptionally()) {
            destroy(env, python, started.join()); // it came in the last moment
        }
        throw failure;
    }

    /** Spark waits for a daemon that hangs with a lock in hand that all of its Python needs. */
    private static void endDaemonsSince(Instant asked) {
        // When a process began is known from the time of the boot, which has whole seconds.
        Instant earliest = asked.minusSeconds(2);
        ProcessHandle.current().children()
            .filter(child -> child.info().commandLine().orElse("").contains(Python.DAEMON))
            .filter(child -> child.info().startInstant().orElse(Instant.MIN).isAfter(earliest))
            .forEach(ProcessHandle::destroyForcibly);
    }

    /** Spark waits for a daemon without limit, so nobody waits for this thread without one. */
    private static void start(SparkEnv env, Python python, CompletableFuture<PythonWorker> started) {
        for (int attempt = 1; !started.isDone(); attempt++) {
            try {
                PythonWorker process = env.createPythonWorker(
                    python.executable(), Python.WORKER, Python.DAEMON,
                    PythonUtils.toScalaMap(python.environment()), true)._1();
                if (!started.complete(process)) {
                    destroy(env, python, process);
                }
            } catch (Throwable error) {
                // Each idle worker of a daemon that has died fails once, and is forgotten.
                if (!(error instanceof IOException) || attempt == ATTEMPTS) {
                    started.completeExceptionally(error);
                }
            }
        }
    }

    void release() {
        held = false;
        process.refresh();
        SparkEnv.get().releasePythonWorker(
            python.executable(), Python.WORKER, Python.DAEMON,
            PythonUtils.toScalaMap(python.environment()), process);
    }

    void destroyUnlessReleased() {
        if (held) {
            held = false;
            destroy(SparkEnv.get(), python, process);
        }
    }

    private static void destroy(SparkEnv env, Python python, PythonWorker process) {
        env.destroyPythonWorker(
            python.executable(), Python.WORKER, Python.DAEMON,
            PythonUtils.toScalaMap(python.environment()), process);
    }

    // -- messages ----------------------------------------------------------------------------

    void send(Request request) {
        ByteBuffer data = ByteBuffer.wrap(request.toBytes());
        try {
            while (data.hasRemaining()) {
                if (socket.write(data) == 0) {
                    await(SelectionKey.OP_WRITE);
                }
            }
        } catch (IOException error) {
            throw gone(error);
        }
    }

    /** What follows; an error is thrown. */
    Answer answer() {
        int number = readInt();
        if (number < 0 || number >= Answer.values().length) {
            throw new LogstoreException("the Python worker answered " + number);
        }
        Answer answer = Answer.values()[number];
        if (answer == Answer.ERROR) {
            String message = readText();
            release();
            throw new LogstoreException(message);
        }
        return answer;
    }

    int readInt() {
        return read(4).getInt();
    }

    byte[] readBytes() {
        int size = readInt();
        if (size < 0 || size > SIZE_MAX) {
            throw new LogstoreException("the Python worker sent a size of " + size);
        }
        return read(size).array();
    }

    String readText() {
        return new String(readBytes(), StandardCharsets.UTF_8);
    }

    Map<String, String> readOptions() {
        Map<String, String> options = new HashMap<>();
        for (int left = readInt(); left > 0; left--) {
            options.put(readText(), readText());
        }
        return options;
    }

    private ByteBuffer read(int size) {
        ByteBuffer data = ByteBuffer.allocate(size);
        try {
            while (data.hasRemaining()) {
                receive(data);
            }
        } catch (IOException error) {
            throw gone(error);
        }
        return data.flip();
    }

    /** For Arrow. Closing it closes nothing. */
    ReadableByteChannel channel() {
        return new ReadableByteChannel() {
            @Override
            public int read(ByteBuffer room) throws IOException {
                return receive(room);
            }

            @Override
            public boolean isOpen() {
                return true;
            }

            @Override
            public void close() {}
        };
    }

    /** At least one byte. */
    private int receive(ByteBuffer room) throws IOException {
        while (true) {
            int count = socket.read(room);
            if (count > 0) {
                return count;
            }
            if (count < 0) {
                throw gone(null);
            }
            await(SelectionKey.OP_READ);
        }
    }

    /** A task that is cancelled meanwhile ends here: nobody else would interrupt the wait. */
    private void await(int operation) throws IOException {
        SelectionKey key = process.selectionKey();
        if (key == null) {
            key = process.refreshNonBlocking().selectionKey();
        }
        key.interestOps(operation);
        process.selector().select(LOOK_MS);
        process.selector().selectedKeys().clear();
        if (task != null) {
            task.killTaskIfInterrupted();
        }
        if (Thread.currentThread().isInterrupted()) {
            throw new LogstoreException("interrupted");
        }
    }

    private LogstoreException gone(IOException error) {
        String why = error == null ? "" : " (" + error.getMessage() + ")";
        return new LogstoreException(
            "the Python worker ended in the midst of its work" + why + "; its last words, if any, "
                + "are in the log of the process that ran the task", error);
    }
}
