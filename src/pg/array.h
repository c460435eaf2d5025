/* Arrays of one dimension as binary parameters: lengths instead of escapes, so a value is copied
 * and nothing else. Begin, then add as many items as were announced. Pure. */
#ifndef MR_PG_ARRAY_H
#define MR_PG_ARRAY_H

#include "base/buf.h"

/* OIDs of built-in types never change; libpq has no header for them. */
enum {
    MR_OID_BYTEA = 17,
    MR_OID_INT8 = 20,
    MR_OID_INT4 = 23,
    MR_OID_TEXT = 25,
    MR_OID_BYTEA_ARRAY = 1001,
    MR_OID_INT4_ARRAY = 1007,
    MR_OID_TEXT_ARRAY = 1009,
    MR_OID_INT8_ARRAY = 1016,
    MR_OID_UUID = 2950,
    MR_OID_UUID_ARRAY = 2951,
    MR_OID_JSONB = 3802,
    MR_OID_JSONB_ARRAY = 3807
};

void mr__array_begin(mr_buf *buf, Oid element, size_t count);
void mr__array_null(mr_buf *buf);
void mr__array_bytes(mr_buf *buf, const void *bytes, size_t length);
void mr__array_int4(mr_buf *buf, int32_t value);
void mr__array_int8(mr_buf *buf, int64_t value);
/* JSON text as jsonb has it on the wire. */
void mr__array_jsonb(mr_buf *buf, const char *text, size_t length);

/* Numbers of a result in binary format. */
int32_t mr__binary_int4(const PGresult *rows, int row, int column);
int64_t mr__binary_int8(const PGresult *rows, int row, int column);

#endif
