/* What happened to consumers: skipped positions, what people did, dead letters; newest first.
 *
 * A listing of one consumer walks its index for its own names only, however much the others have.
 */
#include "observe/listing.h"

#include <string.h>

/* One listing: its table, columns (of `t`), and the order that an index of a consumer gives. */
typedef struct past {
    const char *what;
    mr_table table;
    const char *columns, *order;
} past;

static const past pasts[] = {
    {"gaps.list", MR_TABLE_GAP_SKIPS,
     "t.id, t.consumer_name AS consumer, t.gap_position, t.gap_end,"
     " t.gap_end - t.gap_position + 1 AS positions, t.highest_visible_position,"
     " t.strategy, t.reason, t.first_seen_at, t.created_at, t.worker_id, t.decided_by",
     "created_at DESC"},
    {"audit", MR_TABLE_AUDIT,
     "t.id, t.consumer_name AS consumer, t.action, t.actor, t.reason, t.detail, t.created_at",
     "id DESC"},
    {"dead_letters", MR_TABLE_DEAD_LETTERS,
     "t.id, t.consumer_name AS consumer, t.global_position AS position, t.state,"
     " t.aggregate_type, t.aggregate_id, t.event_type, t.error, t.sqlstate, t.attempts,"
     " t.created_at",
     "global_position DESC"},
};

/* The names that rows about consumer $1 may have: its own, its slots' and, for a slot, the whole
 * consumer's. */
static void put_parts(mr_buf *sql, const mr_names *names)
{
    mr__buf_puts(sql, "WITH part AS (SELECT $1::text AS name UNION SELECT ");
    mr__buf_puts(sql, MR_LIST_BASE("$1::text"));
    mr__buf_puts(sql, " UNION SELECT p.name FROM ");
    mr__ident_quote(sql, names->schema);
    mr__buf_puts(sql, ".consumer_parts($1::text) AS p(name)) ");
}

bool mr__list_past(mr_buf *sql, const mr_names *names, const char *what, bool one)
{
    const past *found = NULL;
    for (size_t i = 0; i < sizeof(pasts) / sizeof(pasts[0]); i++)
        if (strcmp(pasts[i].what, what) == 0)
            found = &pasts[i];
    if (found == NULL)
        return false;
    if (one)
        put_parts(sql, names);
    mr__buf_printf(sql, "SELECT %s FROM ", found->columns);
    if (one)
        mr__buf_puts(sql, "part p CROSS JOIN LATERAL (SELECT * FROM ");
    mr__qname_quote(sql, &names->table[found->table]);
    if (one)
        mr__buf_printf(sql, " r WHERE r.consumer_name = p.name ORDER BY r.%s LIMIT 1000)",
                       found->order);
    mr__buf_puts(sql, " t ORDER BY t.id DESC LIMIT 1000");
    return true;
}
