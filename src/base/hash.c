/* Hashes whose values are contracts: FNV-1a for keys, a finaliser where order or high bits matter.
 */
#include "base/hash.h"

#include <string.h>

uint32_t mr__hash_fnv1a_more(uint32_t h, const void *bytes, size_t length)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < length; i++)
        h = (h ^ p[i]) * 16777619U;
    return h;
}

uint32_t mr__hash_fnv1a(const void *bytes, size_t length)
{
    return mr__hash_fnv1a_more(2166136261U, bytes, length);
}

uint32_t mr__hash_stream(const char *type, const char *id)
{
    uint32_t h = mr__hash_fnv1a(type, strlen(type) + 1);
    return mr__hash_fmix32(mr__hash_fnv1a_more(h, id, strlen(id)));
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

uint64_t mr__hash_mix64(uint64_t h)
{
    h ^= h >> 30;
    h *= 0xbf58476d1ce4e5b9ULL;
    h ^= h >> 27;
    h *= 0x94d049bb133111ebULL;
    h ^= h >> 31;
    return h;
}
