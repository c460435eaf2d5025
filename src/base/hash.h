/* Hashes whose values are contracts: FNV-1a for keys, a finaliser where order or high bits matter.
 */
#ifndef MR_BASE_HASH_H
#define MR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint32_t mr__hash_fnv1a(const void *bytes, size_t length);
uint32_t mr__hash_fnv1a_more(uint32_t h, const void *bytes, size_t length); /* goes on from `h` */
uint64_t mr__hash_fnv1a64(const void *bytes, size_t length);
uint32_t mr__hash_fmix32(uint32_t h);
uint64_t mr__hash_mix64(uint64_t h); /* SplitMix64's finaliser */
/* Of a stream: FNV-1a over the type, a zero byte and the id, finalised. Partitions rest on it: it
 * never changes. */
uint32_t mr__hash_stream(const char *type, const char *id);

#endif
