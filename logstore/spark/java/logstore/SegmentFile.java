package logstore;

import java.util.Arrays;
import logstore.NativePlan.Header;
import logstore.NativePlan.Proof;
import logstore.NativePlan.Split;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;

/** An open segment. Read into memory, never mapped: another process may cut it at any time. */
final class SegmentFile implements AutoCloseable {
    private static final int NOT_THERE = -2; // ENOENT

    private final int descriptor;
    private final Proof proof;

    private SegmentFile(int descriptor, Proof proof) {
        this.descriptor = descriptor;
        this.proof = proof;
    }

    /** The file that was planned, under one of its names; null where Python has to look. */
    static SegmentFile find(Split split) {
        for (byte[] path : split.paths()) {
            int descriptor = Native.open(path);
            if (descriptor == NOT_THERE) {
                continue;
            }
            if (descriptor < 0) {
                return null;
            }
            SegmentFile file = new SegmentFile(descriptor, split.proof());
            if (file.isSame()) {
                return file;
            }
            file.close();
        }
        return null;
    }

    private boolean isSame() {
        long[] now = new long[4];
        return Native.identity(descriptor, now)
            && now[0] == proof.device()
            && now[1] == proof.inode();
    }

    /** Whether it still is what was planned, as {@code FileProof.broken} finds. */
    boolean isProven(BufferAllocator allocator) {
        long[] now = new long[4];
        if (!Native.identity(descriptor, now) || now[2] < proof.size()) {
            return false;
        }
        if (!proof.mayGrow() && (now[2] != proof.size() || now[3] != proof.changedMs())) {
            return false;
        }
        for (Header header : proof.headers()) {
            byte[] found = new byte[header.bytes().length];
            try (ArrowBuf room = allocator.buffer(found.length)) {
                if (!read(room, found.length, header.position())) {
                    return false;
                }
                room.getBytes(0, found);
            }
            if (!Arrays.equals(found, header.bytes())) {
                return false;
            }
        }
        return true;
    }

    /** False if there are not so many bytes, or the system refused. */
    boolean read(ArrowBuf to, long size, long position) {
        return Native.read(descriptor, to.memoryAddress(), size, position) == size;
    }

    @Override
    public void close() {
        Native.close(descriptor);
    }
}
