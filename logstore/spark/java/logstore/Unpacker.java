package logstore;

import com.github.luben.zstd.ZstdDecompressCtx;
import com.github.luben.zstd.ZstdException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.zip.CRC32;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;
import net.jpountz.lz4.LZ4Exception;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.lz4.LZ4SafeDecompressor;
import net.jpountz.xxhash.XXHash32;
import net.jpountz.xxhash.XXHashFactory;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.xerial.snappy.Snappy;

/**
 * Unpacks the records of batches, in the shapes that Kafka's clients write, with the libraries that
 * Spark has. What has another shape, any fault, and what exceeds the limit, is left to Python, which
 * takes more and says what is wrong: {@code logstore/format/codecs}.
 */
final class Unpacker implements AutoCloseable {
    private static final int GZIP = 1, SNAPPY = 2, LZ4 = 3, ZSTD = 4;
    private static final int FIRST_ROOM = 1 << 18;
    private static final long ROOM_MAX = 1 << 27; // beyond it zstd refuses windows, too
    private static final int BLOCKS_MAX = 1 << 16; // with more, Python compares with the content
    private static final int NOT_OURS = -1;

    private final BufferAllocator allocator;
    private final long limit;
    private ArrowBuf room;
    private ZstdDecompressCtx zstd;
    private Inflater inflater;

    Unpacker(BufferAllocator allocator, long limit) {
        this.allocator = allocator;
        this.limit = Math.min(limit, ROOM_MAX);
    }

    /** The size of the content, which lies at {@code address()} until the next call; or −1. */
    int unpack(int codec, ByteBuffer stored) {
        stored.order(ByteOrder.LITTLE_ENDIAN);
        try {
            int size = unpacked(codec, stored);
            return size <= limit ? size : NOT_OURS; // the room may be larger
        } catch (IOException | RuntimeException | LinkageError fault) {
            return NOT_OURS;
        }
    }

    private int unpacked(int codec, ByteBuffer stored) throws IOException {
        switch (codec) {
            case GZIP:
                return gzip(stored);
            case SNAPPY:
                return snappy(stored);
            case LZ4:
                return lz4(stored);
            case ZSTD:
                return zstd(stored);
            default:
                return NOT_OURS;
        }
    }

    long address() {
        return room.memoryAddress();
    }

    /** Room for {@code size} bytes, with what is there kept; false above the limit. */
    private boolean reserve(long size) {
        if (size > limit) {
            return false;
        }
        if (room != null && room.capacity() >= size) {
            return true;
        }
        long grown = Math.max(FIRST_ROOM, room == null ? 0 : 2 * room.capacity());
        ArrowBuf larger = allocator.buffer(Math.max(size, Math.min(grown, limit)));
        if (room != null) {
            larger.setBytes(0, room, 0, room.capacity());
            room.close();
        }
        room = larger;
        return true;
    }

    private ByteBuffer free(int used) {
        return room.nioBuffer(used, (int) room.capacity() - used);
    }

    // -- zstd --------------------------------------------------------------------------------

    private int zstd(ByteBuffer stored) {
        if (!isOneFrame(stored)) {
            return NOT_OURS;
        }
        if (zstd == null) {
            zstd = new ZstdDecompressCtx();
        }
        for (long size = FIRST_ROOM; reserve(size); size = 2 * room.capacity()) {
            try {
                return zstd.decompressDirectByteBuffer(
                    room.nioBuffer(0, (int) room.capacity()), 0, (int) room.capacity(),
                    stored, 0, stored.limit());
            } catch (ZstdException error) {
                if (error.getErrorCode() != ZSTD_NO_ROOM || room.capacity() >= limit) {
                    return NOT_OURS;
                }
                zstd.reset();
            }
        }
        return NOT_OURS;
    }

    private static final int ZSTD_NO_ROOM = 70; // ZSTD_error_dstSize_tooSmall
    private static final int ZSTD_MAGIC = 0xFD2FB528;
    private static final int WINDOW_LOG_MAX = 27;

    /** Whether all of it is one frame, whose window the library of Python takes as well. */
    private static boolean isOneFrame(ByteBuffer stored) {
        int descriptor = stored.get(4);
        if (stored.getInt(0) != ZSTD_MAGIC || (descriptor & 0x0B) != 0) {
            return false; // a reserved bit, or a dictionary
        }
        boolean single = (descriptor & 0x20) != 0;
        int at = 5;
        if (!single && (stored.get(at++) & 0xFF) > WINDOW_LOG_MAX - 10 << 3) {
            return false;
        }
        int sizeFlag = descriptor >> 6 & 3;
        at += sizeFlag == 0 ? (single ? 1 : 0) : 1 << sizeFlag;
        while (true) {
            int header = stored.getShort(at) & 0xFFFF | (stored.get(at + 2) & 0xFF) << 16;
            boolean isRepeated = (header >> 1 & 3) == 1; // one byte stands for all
            at += 3 + (isRepeated ? 1 : header >> 3);
            if (at > stored.limit()) {
                return false;
            }
            if ((header & 1) != 0) {
                return at + ((descriptor & 4) != 0 ? 4 : 0) == stored.limit();
            }
        }
    }

    // -- gzip --------------------------------------------------------------------------------

    private static final int GZIP_HEADER = 10, GZIP_TRAILER = 8;

    private int gzip(ByteBuffer stored) throws IOException {
        int end = stored.limit() - GZIP_TRAILER;
        // ID1, ID2, deflate, and no flag: nothing follows the header but the content.
        if (end < GZIP_HEADER || stored.getInt(0) != 0x00088B1F) {
            return NOT_OURS;
        }
        if (inflater == null) {
            inflater = new Inflater(true);
        }
        inflater.reset();
        inflater.setInput(stored.duplicate().position(GZIP_HEADER).limit(end));
        int size = 0;
        while (!inflater.finished()) {
            if (!reserve(size + 1L)) {
                return NOT_OURS;
            }
            int count;
            try {
                count = inflater.inflate(free(size));
            } catch (DataFormatException fault) {
                return NOT_OURS;
            }
            if (count == 0 && !inflater.finished()) {
                return NOT_OURS; // it ends early, or wants a dictionary
            }
            size += count;
        }
        CRC32 crc = new CRC32();
        crc.update(room.nioBuffer(0, size));
        boolean isWhole = inflater.getRemaining() == 0
            && stored.getInt(end) == (int) crc.getValue()
            && stored.getInt(end + 4) == size;
        return isWhole ? size : NOT_OURS;
    }

    // -- snappy ------------------------------------------------------------------------------

    private static final int SNAPPY_HEADER = 16, SNAPPY_RATIO = 22;
    private static final long SNAPPY_MAGIC = 0x82534E4150505900L;
    private static final long SNAPPY_VERSIONS = 0x0000000100000001L;

    private int snappy(ByteBuffer stored) throws IOException {
        stored.order(ByteOrder.BIG_ENDIAN);
        if (stored.limit() < SNAPPY_HEADER || stored.getLong(0) != SNAPPY_MAGIC) {
            return snappyBlock(stored, 0, stored.limit(), 0);
        }
        if (stored.getLong(8) != SNAPPY_VERSIONS) {
            return NOT_OURS;
        }
        int at = SNAPPY_HEADER;
        int size = 0;
        for (int blocks = 0; at < stored.limit(); blocks++) {
            int length = stored.getInt(at);
            at += 4;
            if (length <= 0 || length > stored.limit() - at || blocks > BLOCKS_MAX) {
                return NOT_OURS;
            }
            size = snappyBlock(stored, at, length, size);
            if (size < 0) {
                return NOT_OURS;
            }
            at += length;
        }
        return reserve(size) ? size : NOT_OURS;
    }

    /** The size of the content with this block behind {@code used} bytes. */
    private int snappyBlock(ByteBuffer stored, int at, int length, int used) throws IOException {
        ByteBuffer block = stored.duplicate().position(at).limit(at + length);
        int size = Snappy.uncompressedLength(block);
        if (size < 0 || size > (long) SNAPPY_RATIO * length || !reserve((long) used + size)) {
            return NOT_OURS;
        }
        // The library takes the room for granted: the block says itself how much it writes.
        return Snappy.uncompress(block, free(used)) == size ? used + size : NOT_OURS;
    }

    // -- lz4 ---------------------------------------------------------------------------------

    private static final int LZ4_MAGIC = 0x184D2204, LZ4_RATIO = 255, PLAIN = 1 << 31;

    private static final class Lz4 {
        static final LZ4SafeDecompressor BLOCK = LZ4Factory.fastestInstance().safeDecompressor();
        static final XXHash32 HASH = XXHashFactory.fastestInstance().hash32();
    }

    private int lz4(ByteBuffer stored) {
        int flags = stored.get(4);
        int descriptor = stored.get(5);
        // Version 1, independent blocks; checksums of blocks or a dictionary are not for us.
        if (stored.getInt(0) != LZ4_MAGIC || (flags & 0xF3) != 0x60
                || (descriptor & 0x8F) != 0 || descriptor < 0x40) {
            return NOT_OURS;
        }
        int at = 6 + ((flags & 8) != 0 ? 8 : 0);
        if ((Lz4.HASH.hash(stored, 4, at - 4, 0) >> 8 & 0xFF) != (stored.get(at++) & 0xFF)) {
            return NOT_OURS;
        }
        int blockMax = 1 << 8 + 2 * (descriptor >> 4);
        int size = 0;
        for (int blocks = 0; ; blocks++) {
            int word = stored.getInt(at);
            int length = word & ~PLAIN;
            at += 4;
            if (length == 0) {
                int end = at + ((flags & 4) != 0 ? 4 : 0); // a checksum that Kafka skips, too
                return end == stored.limit() && reserve(size) ? size : NOT_OURS;
            }
            if (length > blockMax || length > stored.limit() - at || blocks > BLOCKS_MAX) {
                return NOT_OURS;
            }
            boolean isPlain = (word & PLAIN) != 0;
            int most = isPlain ? length : (int) Math.min(blockMax, (long) length * LZ4_RATIO);
            if (!reserve((long) size + most)) {
                return NOT_OURS;
            }
            if (isPlain) {
                free(size).put(stored.duplicate().position(at).limit(at + length));
                size += length;
            } else {
                size += lz4Block(stored, at, length, size, most);
            }
            at += length;
        }
    }

    private int lz4Block(ByteBuffer stored, int at, int length, int used, int most)
            throws LZ4Exception {
        return Lz4.BLOCK.decompress(
            stored, at, length, room.nioBuffer(0, (int) room.capacity()), used, most);
    }

    @Override
    public void close() {
        if (room != null) {
            room.close();
            room = null;
        }
        if (zstd != null) {
            zstd.close();
            zstd = null;
        }
        if (inflater != null) {
            inflater.end();
            inflater = null;
        }
    }
}
