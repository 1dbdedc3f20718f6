package logstore;

import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.ForeignAllocation;

/** What {@code Native.finish} hands out. A vector that loads a block keeps it alive. */
final class Blocks implements AutoCloseable {
    private static final int BLOCKS = 15, STRINGS = 3; // three before those of the binary columns

    /** Three for each block, and for each binary column how many values and nulls. */
    static final int NUMBERS = 3 * BLOCKS + 2 * 4;

    private final List<ArrowBuf> wrapped = new ArrayList<>();
    private final ArrowBuf offsets, timestamps, headerLists;
    private final Strings keys, values, headerNames, headerValues;

    record Strings(ArrowBuf offsets, ArrowBuf data, ArrowBuf valid, long count, long nulls) {}

    Blocks(BufferAllocator allocator, long[] numbers) {
        List<Block> blocks = new ArrayList<>();
        for (int at = 0; at < 3 * BLOCKS; at += 3) {
            blocks.add(new Block(numbers[at], numbers[at + 1], numbers[at + 2]));
        }
        try {
            for (Block block : blocks) {
                wrapped.add(allocator.wrapForeignAllocation(block));
            }
        } catch (RuntimeException | Error error) {
            blocks.subList(wrapped.size(), blocks.size()).forEach(Block::release0);
            close();
            throw error;
        }
        offsets = wrapped.get(0);
        timestamps = wrapped.get(1);
        headerLists = wrapped.get(2);
        keys = strings(numbers, 0);
        values = strings(numbers, 1);
        headerNames = strings(numbers, 2);
        headerValues = strings(numbers, 3);
    }

    private Strings strings(long[] numbers, int column) {
        int first = STRINGS + 3 * column;
        int counts = 3 * BLOCKS + 2 * column;
        return new Strings(
            wrapped.get(first), wrapped.get(first + 1), wrapped.get(first + 2),
            numbers[counts], numbers[counts + 1]);
    }

    ArrowBuf offsets() {
        return offsets;
    }

    ArrowBuf timestamps() {
        return timestamps;
    }

    ArrowBuf headerLists() {
        return headerLists;
    }

    Strings keys() {
        return keys;
    }

    Strings values() {
        return values;
    }

    Strings headerNames() {
        return headerNames;
    }

    Strings headerValues() {
        return headerValues;
    }

    @Override
    public void close() {
        wrapped.forEach(ArrowBuf::close);
        wrapped.clear();
    }

    private static final class Block extends ForeignAllocation {
        private final long capacity;
        private boolean isFree;

        Block(long address, long size, long capacity) {
            super(size, address);
            this.capacity = capacity;
        }

        /** Arrow frees one that it has failed to wrap, and then it is freed with the others. */
        @Override
        protected void release0() {
            if (!isFree) {
                isFree = true;
                Native.free(memoryAddress(), capacity);
            }
        }
    }
}
