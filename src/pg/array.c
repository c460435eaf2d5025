/* Arrays of one dimension as binary parameters, and numbers from binary results. */
#include "pg/array.h"

#include <arpa/inet.h>
#include <endian.h>
#include <string.h>

static void put_int4(mr_buf *buf, int32_t value)
{
    uint32_t wire = htonl((uint32_t)value);
    mr__buf_add(buf, &wire, sizeof(wire));
}

/* Dimensions, may hold NULLs, element type, length, lower bound. */
void mr__array_begin(mr_buf *buf, Oid element, size_t count)
{
    put_int4(buf, 1);
    put_int4(buf, 1);
    put_int4(buf, (int32_t)element);
    put_int4(buf, (int32_t)count);
    put_int4(buf, 1);
}

void mr__array_null(mr_buf *buf)
{
    put_int4(buf, -1);
}

void mr__array_bytes(mr_buf *buf, const void *bytes, size_t length)
{
    put_int4(buf, (int32_t)length);
    mr__buf_add(buf, bytes, length);
}

void mr__array_int4(mr_buf *buf, int32_t value)
{
    put_int4(buf, sizeof(value));
    put_int4(buf, value);
}

void mr__array_int8(mr_buf *buf, int64_t value)
{
    uint64_t wire = htobe64((uint64_t)value);
    mr__array_bytes(buf, &wire, sizeof(wire));
}

void mr__array_jsonb(mr_buf *buf, const char *text, size_t length)
{
    enum { VERSION = 1 };
    put_int4(buf, (int32_t)length + 1);
    mr__buf_putc(buf, VERSION);
    mr__buf_add(buf, text, length);
}

int32_t mr__binary_int4(const PGresult *rows, int row, int column)
{
    uint32_t wire;
    memcpy(&wire, PQgetvalue(rows, row, column), sizeof(wire));
    return (int32_t)ntohl(wire);
}

int64_t mr__binary_int8(const PGresult *rows, int row, int column)
{
    uint64_t wire;
    memcpy(&wire, PQgetvalue(rows, row, column), sizeof(wire));
    return (int64_t)be64toh(wire);
}
