/* CRC-32C (Castagnoli) for magic-2 batches and CRC-32 (IEEE) for magic 0 and 1: rules F-53, F-317.
 *
 * Both take and return the finished value, as zlib's crc32() does: start with 0, and feed the
 * result back in to go on.  The fastest variant for this processor is chosen when the module loads;
 * LOGSTORE_CRC32C=portable in the environment keeps it to the tables.
 */
#ifndef LOGSTORE_CRC32C_H
#define LOGSTORE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t (*logstore_crc_function)(uint32_t value, const uint8_t *data, size_t size);

/* Every compilation unit that links crc32c.c has its own copy; none is exported. */
#pragma GCC visibility push(hidden)
extern logstore_crc_function logstore_crc32c;
uint32_t logstore_crc32(uint32_t value, const uint8_t *data, size_t size);
/* out[i] is logstore_crc32c(0, data[i], size[i]); the fastest way for small and equal sizes. */
void logstore_crc32c_four(const uint8_t *const data[4], const size_t size[4], uint32_t out[4]);
/* The variants, by number, for tests: 0 tables, 1 hardware, 2 AVX-512; NULL where there is none. */
logstore_crc_function logstore_crc32c_variant(int number);
#pragma GCC visibility pop

#endif
