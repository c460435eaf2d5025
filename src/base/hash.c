/* Hashes whose values are contracts: FNV-1a for keys, a finaliser where order or high bits matter.
 */
#include "base/hash.h"

uint32_t mr__hash_fnv1a(const void *bytes, size_t length)
{
    const unsigned char *p = bytes;
    uint32_t h = 2166136261U;
    for (size_t i = 0; i < length; i++)
        h = (h ^ p[i]) * 16777619U;
    return h;
}

uint64_t mr__hash_fnv1a64(const void *bytes, size_t length)
{
    const unsigned char *p = bytes;
    uint64_t h = 14695981039346656037ULL;
    for (size_t i = 0; i < length; i++)
        h = (h ^ p[i]) * 1099511628211ULL;
    return h;
}

uint32_t mr__hash_fmix32(uint32_t h)
{
    h ^= h >> 16;
    h *= 0x85ebca6bU;
    h ^= h >> 13;
    h *= 0xc2b2ae35U;
    h ^= h >> 16;
    return h;
}
