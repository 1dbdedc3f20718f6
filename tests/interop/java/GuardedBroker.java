package logstore.interop;

import java.io.IOException;

/**
 * Runs a broker that cannot outlive the process which started it.
 *
 * <p>A test run that is killed leaves no time to stop its broker. Standard input is a pipe from
 * that run, so its end tells that nobody is left to stop us.
 */
public final class GuardedBroker {
    private GuardedBroker() {
    }

    public static void main(String[] args) {
        Thread guard = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // Nothing is ever written to the pipe; only its end matters.
                }
            } catch (IOException e) {
                System.err.println("standard input failed: " + e);
            }
            Runtime.getRuntime().halt(1);
        }, "guard");
        guard.setDaemon(true);
        guard.start();
        kafka.Kafka.main(args);
    }
}
