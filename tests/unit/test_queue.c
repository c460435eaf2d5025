/* The pure parts of a queue: orders, relations, conditions, the low-water mark, the statements'
 * text.
 */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "queue/statements.h"
#include "random.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        mr_error *error_ = (expression);                                                           \
        if (error_ != NULL)                                                                        \
            fail_msg("%s: %s", #expression, mr_error_message(error_));                             \
    } while (0)

/* ---- Orders
 * -------------------------------------------------------------------------------------- */

static void orders(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int count;
        bool descending;
        const char *first, *last;
    } cases[] = {
        {"id", 1, false, "id", "id"},
        {" Created_At , ID ", 2, false, "created_at", "id"},
        {"j.created_at desc, J . id DESC", 2, true, "created_at", "id"},
        {"\"Odd \"\"name\"\"\" ASC", 1, false, "Odd \"name\"", "Odd \"name\""},
        {"\"j\".a,b,c,d asc", 4, false, "a", "d"},
        {"descending, asc1", 2, false, "descending", "asc1"},
        {"a,b,c,d,e", 0, false, NULL, NULL},
        {"", 0, false, NULL, NULL},
        {"a,", 0, false, NULL, NULL},
        {"a b", 0, false, NULL, NULL},
        {"a DESC, b", 0, false, NULL, NULL},
        {"k.a", 0, false, NULL, NULL},
        {"\"J\".a", 0, false, NULL, NULL},
        {"lower(a)", 0, false, NULL, NULL},
        {"a NULLS FIRST", 0, false, NULL, NULL},
        {"a COLLATE \"C\"", 0, false, NULL, NULL},
        {"a::text", 0, false, NULL, NULL},
        {"1", 0, false, NULL, NULL},
        {"-a", 0, false, NULL, NULL},
        {"a -- comment", 0, false, NULL, NULL},
        {"\"open", 0, false, NULL, NULL},
        {"\"\"", 0, false, NULL, NULL},
        {"schema.j.a", 0, false, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_order order;
        mr__order_parse(cases[i].text, "j", &order);
        if (order.count != cases[i].count)
            fail_msg("'%s': %d columns, not %d", cases[i].text, order.count, cases[i].count);
        if (order.count == 0)
            continue;
        assert_int_equal(order.descending, cases[i].descending);
        assert_string_equal(order.column[0], cases[i].first);
        assert_string_equal(order.column[order.count - 1], cases[i].last);
    }
}

/* What is written by the rules is read back; whatever else comes, nothing breaks. */
static void any_order(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    rng r = rng_new(seed);
    for (int round = 0; round < 5000; round++) {
        MR_AUTO_BUF text = {0};
        char names[MR_ORDER_KEYS][8];
        int count = 1 + (int)rng_below(&r, MR_ORDER_KEYS);
        bool down = rng_chance(&r, 50), spoiled = rng_chance(&r, 20);
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < 7; k++)
                names[i][k] = "ab\" .,"[rng_below(&r, 6)];
            names[i][7] = '\0';
            mr__buf_puts(&text, i == 0 ? "" : rng_chance(&r, 50) ? "," : " ,\n");
            mr__buf_puts(&text, rng_chance(&r, 30) ? "\"my j\"." : "");
            mr__ident_quote(&text, names[i]);
            mr__buf_puts(&text, down ? " desc " : rng_chance(&r, 50) ? " ASC" : "");
        }
        if (spoiled)
            text.data[rng_below(&r, text.length)] = (char)(1 + rng_below(&r, 255));
        mr_order order;
        mr__order_parse(mr__buf_text(&text), "my j", &order);
        if (spoiled)
            continue;
        if (order.count != count || order.descending != down)
            fail_msg("seed %" PRIu64 ": %s", seed, mr__buf_text(&text));
        for (int i = 0; i < count; i++)
            assert_string_equal(order.column[i], names[i]);
    }
}

/* ---- Relations
 * ----------------------------------------------------------------------------------- */

static void relations(void **state)
{
    (void)state;
    static const struct {
        const char *text, *schema, *name, *alias;
    } cases[] = {
        {"jobs", "", "jobs", "jobs"},
        {" app.jobs ", "app", "jobs", "jobs"},
        {"app.jobs j", "app", "jobs", "j"},
        {"app.jobs  AS\tj", "app", "jobs", "j"},
        {"jobs as", "", "jobs", "as"},
        {"\"My app\".\"The jobs\" \"My j\"", "My app", "The jobs", "My j"},
        {"\"a \"\" b\" c", "", "a \" b", "c"},
        {"\"The jobs\"", "", "The jobs", "The jobs"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mr_relation relation;
        assert_ok(mr__relation_parse(cases[i].text, "table", &relation));
        assert_string_equal(relation.name.schema, cases[i].schema);
        assert_string_equal(relation.name.name, cases[i].name);
        assert_string_equal(relation.alias, cases[i].alias);
    }
    static const char *const bad[] = {"", "a b c", "a as b c", "a AS b.c", "\"open", "a.b.c d"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        mr_relation relation;
        mr_error *error = mr__relation_parse(bad[i], "table", &relation);
        if (error == NULL)
            fail_msg("'%s' was taken", bad[i]);
        assert_int_equal(mr_error_code(error), MR_E_CONFIG);
        mr_error_free(error);
    }
}

/* ---- Conditions
 * ---------------------------------------------------------------------------------- */

static void conditions(void **state)
{
    (void)state;
    static const char *const pieces[] = {"'$1 '' $2'", "\"$1\"",    "-- $9\n", "/* $3 /* $4 */ */",
                                         "$a$ $1 $a$", "E'\\' $1'", "word$1",  " + ",
                                         "(x)"};
    uint64_t seed = rng_seed();
    rng r = rng_new(seed);
    for (int round = 0; round < 3000; round++) {
        MR_AUTO_BUF text = {0};
        MR_AUTO_BUF wanted = {0};
        MR_AUTO_BUF got = {0};
        int shift = (int)rng_below(&r, 8), most = 1 + (int)rng_below(&r, 12);
        for (int i = 0; i < 8; i++) {
            if (rng_chance(&r, 50)) {
                const char *piece = pieces[rng_below(&r, 9)];
                mr__buf_printf(&text, " %s ", piece);
                mr__buf_printf(&wanted, " %s ", piece);
            } else {
                int n = 1 + (int)rng_below(&r, (uint64_t)most);
                mr__buf_printf(&text, "=$%d", n);
                mr__buf_printf(&wanted, "=$%d", n + shift);
            }
        }
        mr_condition condition = {.sql = mr__buf_text(&text), .count = most};
        assert_ok(mr__condition_shift(&condition, shift, &got));
        if (strcmp(mr__buf_text(&got), mr__buf_text(&wanted)) != 0)
            fail_msg("seed %" PRIu64 ": %s", seed, mr__buf_text(&text));
    }
    MR_AUTO_BUF got = {0};
    mr_condition few = {.sql = "a = $99999999999999999999", .count = 3};
    mr_error *error = mr__condition_shift(&few, 1, &got);
    assert_int_equal(mr_error_code(error), MR_E_USAGE);
    mr_error_free(error);
}

/* ---- The mark
 * ------------------------------------------------------------------------------------ */

enum { KEYS = 400, INTERVAL = 1000, TICK = 7 };

/* A queue of keys, some of them waiting since a time. */
typedef struct model {
    int64_t since[KEYS]; /* -1 = not waiting */
    int head;            /* next key to come */
    int64_t now;
} model;

/* Claims as a server would: in order, from the mark on or from the beginning. */
static int model_claim(model *m, const mr_mark *mark, mr_scan scan, int wanted, int *last)
{
    int got = 0;
    const char *key_of_mark = mark->key[0];
    int from = 0;
    if (scan == MR_SCAN_MARK) {
        assert_true(key_of_mark != NULL);
        from = key_of_mark == NULL ? 0 : (int)strtol(key_of_mark, NULL, 10);
    }
    for (int key = from; key < m->head && got < wanted; key++) {
        if (m->since[key] < 0)
            continue;
        m->since[key] = -1;
        *last = key;
        got++;
    }
    return got;
}

static void model_turn(model *m, rng *r, mr_mark *mark, int wanted)
{
    mr_scan scan = mr__mark_plan(mark, m->now);
    int64_t took = scan == MR_SCAN_ALL ? (int64_t)rng_below(r, 80) : 1;
    int old = mark->key[0] == NULL ? -1 : (int)strtol(mark->key[0], NULL, 10), last = -1;
    int got = model_claim(m, mark, scan, wanted, &last);
    char key[16];
    (void)snprintf(key, sizeof(key), "%d", last);
    m->now += took;
    mr_mark_news news = {.scan = scan,
                         .wanted = wanted,
                         .got = got,
                         .last = {key},
                         .beyond = last >= old,
                         .now = m->now,
                         .took = took};
    assert_ok(mr__mark_claimed(mark, &news));
    if (scan == MR_SCAN_MARK)
        assert_true(mark->key[0] != NULL && strtol(mark->key[0], NULL, 10) >= old);
}

/* Whatever comes to wait below the mark is claimed soon, although most claims do not look there. */
static void nothing_is_forgotten(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    for (uint64_t game = 0; game < 200; game++) {
        rng r = rng_new(seed + game);
        model m = {.head = 0};
        memset(m.since, 0xFF, sizeof(m.since));
        mr_mark mark;
        mr__mark_init(&mark, 1, INTERVAL);
        for (int turn = 0; turn < 2000; turn++) {
            m.now += TICK;
            if (m.head < KEYS && rng_chance(&r, 20))
                m.since[m.head++] = m.now;
            if (m.head > 0 && rng_chance(&r, 5))
                m.since[rng_below(&r, (uint64_t)m.head)] = m.now; /* put back by somebody */
            if (rng_chance(&r, 1))
                mr__mark_stir(&mark);
            model_turn(&m, &r, &mark, 1 + (int)rng_below(&r, 40));
            for (int key = 0; key < m.head; key++)
                if (m.since[key] >= 0 && m.now - m.since[key] > 4 * (INTERVAL + 20 * 80))
                    fail_msg("seed %" PRIu64 ": key %d waits since %" PRId64 " at %" PRId64, seed,
                             key, m.since[key], m.now);
        }
        mr__mark_free(&mark);
    }
}

static mr_error *tell(mr_mark *mark, mr_scan scan, int wanted, int got, const char *key,
                      bool beyond, int64_t took)
{
    mr_mark_news news = {.scan = scan,
                         .wanted = wanted,
                         .got = got,
                         .last = {key},
                         .beyond = beyond,
                         .now = 0,
                         .took = took};
    return mr__mark_claimed(mark, &news);
}

static void mark_rules(void **state)
{
    (void)state;
    mr_mark mark;
    mr__mark_init(&mark, 1, INTERVAL);
    assert_int_equal(mr__mark_plan(&mark, 0), MR_SCAN_ALL);
    /* Nothing found: no mark to start at. */
    assert_ok(tell(&mark, MR_SCAN_ALL, 5, 0, NULL, false, 1));
    assert_int_equal(mr__mark_plan(&mark, 1), MR_SCAN_ALL);
    assert_ok(tell(&mark, MR_SCAN_ALL, 5, 5, "50", true, 1));
    assert_int_equal(mr__mark_plan(&mark, INTERVAL - 1), MR_SCAN_MARK);
    assert_int_equal(mr__mark_plan(&mark, INTERVAL), MR_SCAN_ALL);
    /* A look that did not get all it wanted leaves the mark; one that did may have left some below.
     */
    assert_ok(tell(&mark, MR_SCAN_ALL, 5, 2, "20", false, 1));
    assert_string_equal(mark.key[0], "50");
    assert_ok(tell(&mark, MR_SCAN_ALL, 2, 2, "20", false, 1));
    assert_string_equal(mark.key[0], "20");
    assert_ok(tell(&mark, MR_SCAN_MARK, 5, 1, "60", true, 1));
    assert_string_equal(mark.key[0], "60");
    /* A slow look comes seldomer. */
    assert_ok(tell(&mark, MR_SCAN_ALL, 5, 1, "61", true, INTERVAL));
    assert_int_equal(mr__mark_plan(&mark, 20 * INTERVAL - 1), MR_SCAN_MARK);
    mr__mark_stir(&mark);
    assert_int_equal(mr__mark_plan(&mark, 0), MR_SCAN_ALL);
    /* A key with a NULL compares with nothing. */
    assert_ok(tell(&mark, MR_SCAN_ALL, 5, 5, NULL, true, 1));
    assert_int_equal(mr__mark_plan(&mark, 1), MR_SCAN_ALL);
    mr__mark_free(&mark);
    /* Without plain columns there is none. */
    mr__mark_init(&mark, 0, INTERVAL);
    assert_ok(tell(&mark, MR_SCAN_ALL, 5, 5, "1", true, 1));
    assert_int_equal(mr__mark_plan(&mark, 1), MR_SCAN_ALL);
    mr__mark_free(&mark);
}

/* ---- Statements
 * ----------------------------------------------------------------------------------- */

/* Brackets pair up outside of quotes, and no word of a template is left. */
static void check_text(const char *sql)
{
    int depth = 0;
    for (const char *p = sql; *p != '\0'; p++) {
        if (*p == '"' || *p == '\'') {
            p = strchr(p + 1, *p);
            assert_non_null(p);
            continue;
        }
        if (strncmp(p, "--", 2) == 0) {
            p += strcspn(p, "\n");
            assert_true(*p == '\n');
        }
        if (*p == '{' || *p == '}')
            fail_msg("a word is left in %s", sql);
        depth += *p == '(' || *p == '[' ? 1 : *p == ')' || *p == ']' ? -1 : 0;
        assert_true(depth >= 0);
    }
    assert_int_equal(depth, 0);
}

static void random_shape(rng *r, mr_mapping *mapping, mr_queue_shape *shape)
{
    static char *view_columns[] = {"id", "state", "it's \"odd\"", "payload"};
    assert_ok(mr__mapping_init(mapping, "it's {a} queue"));
    assert_ok(mr__mapping_table(mapping, "\"T {x}\" \"a {b}\""));
    *shape = (mr_queue_shape){.mapping = mapping,
                              .table = {"s", "T"},
                              .view = {"s", "V"},
                              .direct = rng_chance(r, 50),
                              .view_columns = view_columns,
                              .view_column_count = 4,
                              .logs_filled = rng_chance(r, 50)};
    (void)snprintf(mapping->table.alias, sizeof(mapping->table.alias), "a \"b\"");
    if (!shape->direct)
        assert_ok(mr__mapping_view(mapping, "V v"));
    for (int i = 0; i < MR_JOB_COLUMN_COUNT; i++) {
        shape->has[i] = mr__job_column_required((mr_job_column)i) || rng_chance(r, 50);
        shape->utc[i] = rng_chance(r, 50);
        shape->limit[i] = rng_chance(r, 50) ? 10 : -1;
        (void)snprintf(shape->type[i], MR_QUEUE_TYPE_MAX, "pg_catalog.text");
        if (rng_chance(r, 50))
            assert_ok(mr__mapping_column(mapping, mr__job_column_name((mr_job_column)i), "o'd\"d"));
    }
    shape->order.count = (int)rng_below(r, MR_ORDER_KEYS + 1);
    shape->order.descending = rng_chance(r, 50);
    for (int i = 0; i < shape->order.count; i++) {
        (void)snprintf(shape->order.column[i], MR_IDENT_MAX + 1, "k\"%d", i);
        (void)snprintf(shape->order_type[i], MR_QUEUE_TYPE_MAX, "pg_catalog.int8");
    }
    if (rng_chance(r, 50))
        assert_ok(mr__mapping_order(mapping, "x -- comment"));
    if (rng_chance(r, 50))
        assert_ok(mr__mapping_condition(mapping, "kind = 'a' -- comment"));
    if (rng_chance(r, 50))
        assert_ok(mr__mapping_value(mapping, "v", "lower(payload) -- comment"));
}

static void texts(void **state)
{
    (void)state;
    uint64_t seed = rng_seed();
    rng r = rng_new(seed);
    mr_names names;
    assert_ok(mr__names_init(&names, "mill race"));
    for (int round = 0; round < 300; round++) {
        mr_mapping mapping;
        mr_queue_shape shape;
        random_shape(&r, &mapping, &shape);
        mr_queue_policy policy = mr__queue_policy_default();
        policy.retry_after = rng_chance(&r, 50) ? 5 : 0;
        policy.reset_failure_message = rng_chance(&r, 50) ? "it's over" : NULL;
        mr_queue_source source = {&shape, &policy, &names};
        mr_queue_sql sql;
        assert_ok(mr__queue_sql_render(&source, &sql));
        for (int i = 0; i < MR_QUEUE_STATEMENT_COUNT; i++) {
            check_text(sql.text[i]);
            /* Only the server's clock, and never the start of a transaction. */
            assert_null(strstr(sql.text[i], "now()"));
            assert_null(strstr(sql.text[i], "current_timestamp"));
        }
        assert_true(sql.text[MR_QUEUE_CLAIM_MARK][0] == '\0' || shape.order.count > 0);
        mr_condition more = {.sql = "z = $1", .count = 1};
        char *own = NULL;
        assert_ok(mr__queue_sql_claim(&source, MR_SCAN_ALL, &more, 1, &own));
        check_text(own);
        char wanted[32];
        (void)snprintf(wanted, sizeof(wanted), "z = $%d", 3 + shape.order.count);
        assert_non_null(strstr(own, wanted));
        free(own);
        mr__queue_sql_free(&sql);
        mr__mapping_free(&mapping);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders),     cmocka_unit_test(any_order),
        cmocka_unit_test(relations),  cmocka_unit_test(conditions),
        cmocka_unit_test(mark_rules), cmocka_unit_test(nothing_is_forgotten),
        cmocka_unit_test(texts),
    };
    return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
