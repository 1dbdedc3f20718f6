/* CRC-32C and CRC-32: see crc32c.h.
 *
 * The hardware variant for x86-64 has three parts.
 *
 * 1. The crc32 instruction takes 8 bytes, and its result is ready after 3 cycles, but one can start
 *    each cycle.  So a buffer is cut into three equal streams, whose registers are joined at the
 *    end: the register of an earlier stream has to be moved over the bytes of the later ones, that
 *    is multiplied by x^(8n) modulo P.  One carry-less multiplication by x^(8n - 33) does it,
 *    because the crc32 instruction which reduces the product multiplies by x^32 more, and a product
 *    of two reflected numbers has a factor x too many.  powers[] holds x^(64k - 33) for all stream
 *    lengths of k words up to a block, so that any length is cut with at most 23 bytes left over.
 *
 * 2. Below SMALL bytes one serial loop is used, for cutting costs more than it saves.  A walk over
 *    consecutive small batches gives four of them at a time (logstore_crc32c_four).
 *
 * 3. From WIDE bytes on the carry-less multiplier of AVX-512 folds 256 bytes at a time, where the
 *    processor has it: the bytes in a register, moved over the next 256 by two multiplications for
 *    each 16 of them, have the same remainder modulo P.  What is left, 16 bytes, goes through the
 *    crc32 instruction.
 */
#include "crc32c.h"

#include <stdlib.h>
#include <string.h>

#define CASTAGNOLI 0x82f63b78u
#define IEEE 0xedb88320u

static uint32_t castagnoli_tables[8][256];
static uint32_t ieee_tables[8][256];

static void fill_tables(uint32_t tables[8][256], uint32_t polynomial)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (value & 1 ? polynomial : 0);
        tables[0][byte] = value;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][before & 0xff];
        }
}

static inline uint32_t load_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Slicing by 8: eight table look-ups instead of eight dependent steps. */
static inline uint32_t by_tables(const uint32_t t[8][256], uint32_t value, const uint8_t *p,
                                 size_t size)
{
    uint32_t crc = ~value;
    for (; size >= 8; size -= 8, p += 8) {
        uint32_t low = load_le32(p) ^ crc, high = load_le32(p + 4);
        crc = t[7][low & 0xff] ^ t[6][low >> 8 & 0xff] ^ t[5][low >> 16 & 0xff] ^ t[4][low >> 24] ^
              t[3][high & 0xff] ^ t[2][high >> 8 & 0xff] ^ t[1][high >> 16 & 0xff] ^
              t[0][high >> 24];
    }
    for (; size; size--, p++)
        crc = (crc >> 8) ^ t[0][(crc ^ *p) & 0xff];
    return ~crc;
}

static uint32_t crc32c_tables(uint32_t value, const uint8_t *data, size_t size)
{
    return by_tables((const uint32_t(*)[256])castagnoli_tables, value, data, size);
}

uint32_t logstore_crc32(uint32_t value, const uint8_t *data, size_t size)
{
    return by_tables((const uint32_t(*)[256])ieee_tables, value, data, size);
}

typedef void (*four_function)(const uint8_t *const data[4], const size_t size[4],
                              uint32_t out[4]);

static void four_in_turn(const uint8_t *const data[4], const size_t size[4], uint32_t out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = logstore_crc32c(0, data[i], size[i]);
}

#if defined(__x86_64__) && !defined(LOGSTORE_PORTABLE)
#include <immintrin.h>

#define HARDWARE __attribute__((target("sse4.2,pclmul")))
#define SMALL 192
#define AHEAD 1024 /* the hardware does not prefetch past a page, and every page is touched once */
#define WORDS_MAX 128 /* words of 8 bytes in one stream */

static uint32_t powers[2 * WORDS_MAX + 1]; /* [k]: x^(64k - 33) modulo P, reflected */

static uint32_t times_x(uint32_t value, int exponent)
{
    while (exponent--)
        value = (value >> 1) ^ (value & 1 ? CASTAGNOLI : 0);
    return value;
}

static void fill_powers(void)
{
    powers[1] = times_x(0x80000000u, 31);
    for (int words = 2; words <= 2 * WORDS_MAX; words++)
        powers[words] = times_x(powers[words - 1], 64);
}

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, 8);
    return value;
}

HARDWARE static inline __m128i product(uint64_t crc, uint32_t power)
{
    return _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi32_si128((int)power), 0);
}

/* Three streams of `words` words each, starting at p. */
HARDWARE static inline uint64_t three_streams(uint64_t crc, const uint8_t *p, size_t words)
{
    uint64_t first = crc, second = 0, third = 0;
    const size_t stride = words * 8;
    const uint8_t *end = p + stride - 8;
    const uint8_t *ahead = p + 3 * stride + AHEAD;
    __m128i joined;
    for (; p + 16 <= end; p += 16, ahead += 48) {
        _mm_prefetch((const char *)ahead, _MM_HINT_T0);
        first = _mm_crc32_u64(first, load64(p));
        second = _mm_crc32_u64(second, load64(p + stride));
        third = _mm_crc32_u64(third, load64(p + 2 * stride));
        first = _mm_crc32_u64(first, load64(p + 8));
        second = _mm_crc32_u64(second, load64(p + stride + 8));
        third = _mm_crc32_u64(third, load64(p + 2 * stride + 8));
    }
    if (p < end) {
        first = _mm_crc32_u64(first, load64(p));
        second = _mm_crc32_u64(second, load64(p + stride));
        third = _mm_crc32_u64(third, load64(p + 2 * stride));
    }
    first = _mm_crc32_u64(first, load64(end));
    second = _mm_crc32_u64(second, load64(end + stride));
    joined = _mm_xor_si128(product(first, powers[2 * words]), product(second, powers[words]));
    /* The product takes the place of a preceding register: it enters with the last word. */
    return _mm_crc32_u64(third, load64(end + 2 * stride) ^ (uint64_t)_mm_cvtsi128_si64(joined));
}

HARDWARE static inline uint32_t tail(uint64_t crc, const uint8_t *p, size_t size)
{
    for (; size >= 32; size -= 32, p += 32) {
        crc = _mm_crc32_u64(crc, load64(p));
        crc = _mm_crc32_u64(crc, load64(p + 8));
        crc = _mm_crc32_u64(crc, load64(p + 16));
        crc = _mm_crc32_u64(crc, load64(p + 24));
    }
    if (size & 16) {
        crc = _mm_crc32_u64(crc, load64(p));
        crc = _mm_crc32_u64(crc, load64(p + 8));
        p += 16;
    }
    if (size & 8) {
        crc = _mm_crc32_u64(crc, load64(p));
        p += 8;
    }
    if (size & 4) {
        crc = _mm_crc32_u32((uint32_t)crc, load_le32(p));
        p += 4;
    }
    if (size & 2) {
        crc = _mm_crc32_u16((uint32_t)crc, (uint16_t)(p[0] | p[1] << 8));
        p += 2;
    }
    if (size & 1)
        crc = _mm_crc32_u8((uint32_t)crc, *p);
    return ~(uint32_t)crc;
}

HARDWARE static uint32_t crc32c_hardware(uint32_t value, const uint8_t *p, size_t size)
{
    uint64_t crc = (uint32_t)~value;
    if (size < SMALL) {
        _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)p + AHEAD + 64, _MM_HINT_T0);
        _mm_prefetch((const char *)p + AHEAD + 128, _MM_HINT_T0);
    }
    while (size >= SMALL) {
        size_t words = size / 24;
        if (words > WORDS_MAX)
            words = WORDS_MAX;
        crc = three_streams(crc, p, words);
        p += words * 24;
        size -= words * 24;
    }
    return tail(crc, p, size);
}

#define WIDE_TARGET __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))
#define WIDE 256 /* not below STEP */
#define STEP 256 /* bytes in four registers */

/* To move 16 bytes over [0] 256, [1] 64, [2] 48, [3] 32 and [4] 16 of the bytes behind them:
 * x^(8n + 63) and x^(8n - 1) modulo P, for the first and the last 8. A product of two reflected
 * numbers has a factor x too many. */
static uint64_t folds[5][2];

static void fill_folds(void)
{
    static const int bytes[5] = {STEP, 64, 48, 32, 16};
    for (int i = 0; i < 5; i++) {
        folds[i][1] = (uint64_t)times_x(0x80000000u, 8 * bytes[i] - 1) << 32;
        folds[i][0] = (uint64_t)times_x(0x80000000u, 8 * bytes[i] + 63) << 32;
    }
}

WIDE_TARGET static inline __m128i both_words(int fold)
{
    return _mm_loadu_si128((const __m128i *)folds[fold]);
}

/* `value` moved, and added to what lies there. */
WIDE_TARGET static inline __m512i fold_four(__m512i value, __m512i by, __m512i there)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, by, 0x00),
                                     _mm512_clmulepi64_epi128(value, by, 0x11), there, 0x96);
}

WIDE_TARGET static inline __m128i fold_one(__m128i value, __m128i by, __m128i there)
{
    return _mm_xor_si128(there, _mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00),
                                              _mm_clmulepi64_si128(value, by, 0x11)));
}

WIDE_TARGET static uint32_t crc32c_wide(uint32_t value, const uint8_t *p, size_t size)
{
    __m512i a, b, c, d, by;
    __m128i last;
    uint64_t crc;
    if (size < WIDE)
        return crc32c_hardware(value, p, size);
    by = _mm512_broadcast_i32x4(both_words(0));
    a = _mm512_xor_si512(_mm512_loadu_si512(p),
                         _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~value)));
    b = _mm512_loadu_si512(p + 64);
    c = _mm512_loadu_si512(p + 128);
    d = _mm512_loadu_si512(p + 192);
    for (p += STEP, size -= STEP; size >= STEP; p += STEP, size -= STEP) {
        a = fold_four(a, by, _mm512_loadu_si512(p));
        b = fold_four(b, by, _mm512_loadu_si512(p + 64));
        c = fold_four(c, by, _mm512_loadu_si512(p + 128));
        d = fold_four(d, by, _mm512_loadu_si512(p + 192));
    }
    by = _mm512_broadcast_i32x4(both_words(1));
    d = fold_four(fold_four(fold_four(a, by, b), by, c), by, d);
    for (; size >= 64; p += 64, size -= 64)
        d = fold_four(d, by, _mm512_loadu_si512(p));
    last = _mm512_extracti32x4_epi32(d, 3);
    last = fold_one(_mm512_castsi512_si128(d), both_words(2), last);
    last = fold_one(_mm512_extracti32x4_epi32(d, 1), both_words(3), last);
    last = fold_one(_mm512_extracti32x4_epi32(d, 2), both_words(4), last);
    crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(last));
    crc = _mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(last, 1));
    return tail(crc, p, size);
}

/* Four at once: their chains of crc32 instructions, of 3 cycles each, fill one another's gaps. */
HARDWARE static void four_hardware(const uint8_t *const data[4], const size_t size[4],
                                   uint32_t out[4])
{
    const uint8_t *a = data[0], *b = data[1], *c = data[2], *d = data[3];
    uint64_t crc_a = 0xffffffff, crc_b = 0xffffffff, crc_c = 0xffffffff, crc_d = 0xffffffff;
    size_t both = size[0] < size[1] ? size[0] : size[1];
    size_t last = size[2] < size[3] ? size[2] : size[3];
    size_t shared = both < last ? both : last, at;
    for (at = 0; at < last; at += 64) /* what a later call reads */
        for (int i = 0; i < 4; i++)
            _mm_prefetch((const char *)data[i] + 2 * AHEAD + at, _MM_HINT_T0);
    for (at = 0; at + 16 <= shared; at += 16) {
        crc_a = _mm_crc32_u64(crc_a, load64(a + at));
        crc_b = _mm_crc32_u64(crc_b, load64(b + at));
        crc_c = _mm_crc32_u64(crc_c, load64(c + at));
        crc_d = _mm_crc32_u64(crc_d, load64(d + at));
        crc_a = _mm_crc32_u64(crc_a, load64(a + at + 8));
        crc_b = _mm_crc32_u64(crc_b, load64(b + at + 8));
        crc_c = _mm_crc32_u64(crc_c, load64(c + at + 8));
        crc_d = _mm_crc32_u64(crc_d, load64(d + at + 8));
    }
    out[0] = tail(crc_a, a + at, size[0] - at);
    out[1] = tail(crc_b, b + at, size[1] - at);
    out[2] = tail(crc_c, c + at, size[2] - at);
    out[3] = tail(crc_d, d + at, size[3] - at);
}

static int hardware_present(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

static int wide_present(void)
{
    return hardware_present() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("vpclmulqdq");
}

#elif defined(__aarch64__) && defined(__linux__) && defined(__BYTE_ORDER__) && \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && !defined(LOGSTORE_PORTABLE)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif

/* The instruction itself, so that no particular -march is needed to compile this file. */
static inline uint32_t step64(uint32_t crc, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

static inline uint32_t step8(uint32_t crc, uint8_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}

static uint32_t crc32c_hardware(uint32_t value, const uint8_t *p, size_t size)
{
    uint32_t crc = ~value;
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = step64(crc, word);
    }
    for (; size; size--, p++)
        crc = step8(crc, *p);
    return ~crc;
}

#define crc32c_wide crc32c_hardware
static void fill_powers(void) {}
static void fill_folds(void) {}
static int wide_present(void) { return 0; }

static int hardware_present(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

#else /* any other processor; a test compiles this on ours too, with LOGSTORE_PORTABLE */

#define crc32c_hardware crc32c_tables
#define crc32c_wide crc32c_tables
static void fill_powers(void) {}
static void fill_folds(void) {}
static int hardware_present(void) { return 0; }
static int wide_present(void) { return 0; }

#endif

logstore_crc_function logstore_crc32c = crc32c_tables;
static four_function four = four_in_turn;

void logstore_crc32c_four(const uint8_t *const data[4], const size_t size[4], uint32_t out[4])
{
    four(data, size, out);
}

logstore_crc_function logstore_crc32c_variant(int number)
{
    if (number == 0)
        return crc32c_tables;
    if (number == 1)
        return hardware_present() ? crc32c_hardware : NULL;
    return number == 2 && wide_present() ? crc32c_wide : NULL;
}

/* Before any Python code of the module runs, so no call ever has to look. */
__attribute__((constructor)) static void choose(void)
{
    fill_tables(castagnoli_tables, CASTAGNOLI);
    fill_tables(ieee_tables, IEEE);
    fill_powers();
    fill_folds();
    const char *wanted = getenv("LOGSTORE_CRC32C");
    if (hardware_present() && !(wanted != NULL && strcmp(wanted, "portable") == 0)) {
        logstore_crc32c = wide_present() ? crc32c_wide : crc32c_hardware;
#if defined(__x86_64__) && !defined(LOGSTORE_PORTABLE)
        four = four_hardware;
#endif
    }
}
