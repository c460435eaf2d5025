/* Keys and buckets in SQL: published vectors, and the same as the library for any text. */
#include "scratch.h"

#include "../unit/random.h"
#include "base/hash.h"
#include "cluster/ring.h"
#include "cluster/schema.h"
#include "cluster/schema_files.h"

#include <string.h>
#include <unistd.h>

static void apply(PGconn *conn, const char *schema)
{
    mr_names names;
    mr_log_spec log;
    assert_ok(mr__names_init(&names, schema));
    mr__log_spec_init(&log);
    mr_schema_input input = {.names = &names, .log = &log, .no_log = true};
    assert_ok(mr__schema_apply(conn, &input, NULL));
}

static PGresult *ask(PGconn *conn, const char *sql, const char *key)
{
    PGresult *result = PQexecParams(conn, sql, 1, NULL, &key, NULL, NULL, 0);
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s", PQerrorMessage(conn));
    return result;
}

static void vectors(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    apply(conn, "millrace");
    assert_string_equal(value(conn, "SELECT to_hex(millrace.hash_key(''))"), "811c9dc5");
    assert_string_equal(value(conn, "SELECT to_hex(millrace.hash_key('a'))"), "e40c292c");
    assert_string_equal(value(conn, "SELECT to_hex(millrace.hash_key('foobar'))"), "bf9cf968");
    assert_int_equal(number(conn, "SELECT millrace.key_bucket('foobar', 1024)"), 0x168);
    assert_int_equal(number(conn, "SELECT millrace.key_bucket('foobar', 1)"), 0);
    assert_int_equal(number(conn, "SELECT millrace.key_bucket('foobar', 2147483647)"),
                     0xbf9cf968 % 2147483647U);
    assert_string_equal(value(conn, "SELECT millrace.hash_key(NULL) IS NULL AND"
                                    " millrace.key_bucket(NULL, 3) IS NULL"),
                        "t");
}

/* Immutable, so that an index or a generated column can be built on it; and found whatever the
 * schema's name and the caller's search_path are. */
static void in_generated_columns(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    apply(conn, "Mill \"Race");
    run(conn, "SET search_path = ''");
    run(conn, "CREATE TABLE public.t (k text, b int GENERATED ALWAYS AS"
              " (\"Mill \"\"Race\".key_bucket(k, 1024)) STORED)");
    run(conn, "INSERT INTO public.t VALUES ('foobar')");
    assert_int_equal(number(conn, "SELECT b FROM public.t"), 0x168);
    assert_string_equal(
        value(conn, "SELECT string_agg(proname || provolatile::text || proisstrict::text ||"
                    " proparallel::text, ' ' ORDER BY proname) FROM pg_catalog.pg_proc"
                    " WHERE proname IN ('hash_key', 'key_bucket')"),
        "hash_keyitrues key_bucketitrues");
}

/* A character of one to four bytes; no NUL, no surrogates. */
static size_t put_character(char *out, rng *r)
{
    static const uint32_t limit[] = {0x80, 0x800, 0x10000, 0x110000};
    uint64_t size = rng_below(r, 4);
    uint32_t low = size == 0 ? 1 : limit[size - 1];
    uint32_t code = low + (uint32_t)rng_below(r, limit[size] - low);
    if (code >= 0xd800 && code < 0xe000)
        code = 0x20ac;
    if (size == 0) {
        out[0] = (char)code;
        return 1;
    }
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    for (size_t i = size; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)(lead[size] | code);
    return size + 1;
}

static void agrees(PGconn *conn, const char *key, int buckets)
{
    char sql[128];
    (void)snprintf(sql, sizeof(sql),
                   "SELECT millrace.hash_key($1::text), millrace.key_bucket($1::text, %d)",
                   buckets);
    PGresult *rows = ask(conn, sql, key);
    size_t length = strlen(key);
    uint32_t wanted = mr__hash_fnv1a(key, length);
    if (strtoull(PQgetvalue(rows, 0, 0), NULL, 10) != wanted ||
        strtol(PQgetvalue(rows, 0, 1), NULL, 10) != mr__ring_bucket(key, length, buckets))
        fail_msg("'%s': SQL says %s and %s, C %u and %d", key, PQgetvalue(rows, 0, 0),
                 PQgetvalue(rows, 0, 1), wanted, mr__ring_bucket(key, length, buckets));
    PQclear(rows);
}

static void same_as_library(void **state)
{
    PGconn *conn = ((scratch *)*state)->conn;
    apply(conn, "millrace");
    static const char *const keys[] = {"",     "order:9182", "Grüße",       "日本語", "🦀🦀",
                                       "\x7f", "a\tb\nc\\d", "e\xcc\x81 é", " "};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        agrees(conn, keys[i], 1024);
    rng r = rng_new(20);
    for (int i = 0; i < 3000; i++) {
        char key[4 * 40 + 1];
        size_t length = 0;
        for (uint64_t left = rng_below(&r, 40); left > 0; left--)
            length += put_character(key + length, &r);
        key[length] = '\0';
        agrees(conn, key, 1 + (int)rng_below(&r, 65536));
    }
}

static void make_function(PGconn *conn, const char *file)
{
    mr_names names;
    assert_ok(mr__names_init(&names, "millrace"));
    const mr_embed *found = mr__sql_functions;
    while (found->name != NULL && strcmp(found->name, file) != 0)
        found++;
    assert_non_null(found->name);
    MR_AUTO_BUF sql = {0};
    assert_ok(mr__template_render(found, &(mr_template_input){.names = &names}, &sql));
    run(conn, mr__buf_text(&sql));
}

/* The bytes are UTF-8 also where the database stores others. */
static void in_another_encoding(void **state)
{
    const scratch *s = *state;
    scratch other = *s;
    char sql[200];
    (void)snprintf(other.name, sizeof(other.name), "mr_latin1_%ld", (long)getpid());
    (void)snprintf(sql, sizeof(sql),
                   "CREATE DATABASE %s ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
                   other.name);
    run(s->admin, sql);
    PGconn *conn = scratch_connect(&other);
    assert_string_equal(value(conn, "SHOW server_encoding"), "LATIN1");
    run(conn, "CREATE SCHEMA millrace");
    make_function(conn, "hash_key.sql");
    make_function(conn, "key_bucket.sql");
    agrees(conn, "Grüße, é", 1024);
    PQfinish(conn);
    (void)snprintf(sql, sizeof(sql), "DROP DATABASE %s", other.name);
    run(s->admin, sql);
}

int main(void)
{
    scratch_require_server();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(vectors, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(in_generated_columns, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(same_as_library, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(in_another_encoding, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
