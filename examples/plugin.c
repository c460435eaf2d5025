/* A handler in a shared object, for `plugin:` of a configuration file. Counts events by type into
 * the table that plugin_config names, exactly once.
 *
 *     CREATE TABLE event_counts (event_type text PRIMARY KEY, n bigint NOT NULL);
 *     cc -shared -fPIC -Iinclude -I$(pg_config --includedir) examples/plugin.c -o counts.so
 *
 *     consumers:
 *       - name: counts_v1
 *         plugin: ./counts.so
 *         plugin_config: event_counts
 *
 * It is not linked to libmillrace: the program that loads it has all of it. */
#include <millrace/millrace.h>

#include <stdio.h>
#include <stdlib.h>

/* The statement, made once. */
typedef struct counts {
    char sql[256];
} counts;

static mr_error *count(mr_tx *tx, const mr_event *event, void *user)
{
    const counts *c = user;
    if (tx == NULL)
        return mr_error_new(MR_E_HANDLER, false, "this plugin needs a transaction");
    const char *values[] = {mr_event_type(event)};
    return mr_tx_exec(tx, c->sql, 1, values);
}

/* Plugins are looked up by this name; a later interface will have another. */
MR_API mr_error *mr_plugin_v1(mr_plugin *plugin);
mr_error *mr_plugin_v1(mr_plugin *plugin)
{
    const char *table = mr_plugin_config(plugin);
    if (table[0] == '\0')
        return mr_error_new(MR_E_CONFIG, false, "plugin_config must name a table");
    counts *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return mr_error_new(MR_E_NOMEM, true, "out of memory");
    int length = snprintf(c->sql, sizeof(c->sql),
                          "INSERT INTO %s AS t (event_type, n) VALUES ($1, 1)"
                          " ON CONFLICT (event_type) DO UPDATE SET n = t.n + 1",
                          table);
    if (length < 0 || (size_t)length >= sizeof(c->sql)) {
        free(c);
        return mr_error_new(MR_E_CONFIG, false, "plugin_config is too long for a table's name");
    }
    mr_plugin_on_event(plugin, count, c, free);
    return NULL;
}
