/* The names of the control plane's tables: configurable, each with its own schema. */
#include "cluster/names.h"

#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *option;
} tables[MR_TABLE_COUNT] = {
#define TABLE_ROW(symbol, name, option) {name, option},
    MR_TABLES(TABLE_ROW)
#undef TABLE_ROW
};

mr_error *mr__names_init(mr_names *names, const char *schema)
{
    if (schema[0] == '\0' || strlen(schema) > MR_IDENT_MAX)
        return mr__error(MR_E_CONFIG, "schema: the name must have 1 to 63 bytes");
    *names = (mr_names){0};
    (void)snprintf(names->schema, sizeof(names->schema), "%s", schema);
    for (int i = 0; i < MR_TABLE_COUNT; i++) {
        (void)snprintf(names->table[i].schema, sizeof(names->table[i].schema), "%s", schema);
        (void)snprintf(names->table[i].name, sizeof(names->table[i].name), "%s", tables[i].name);
    }
    return NULL;
}

mr_error *mr__names_set(mr_names *names, mr_table table, const char *text)
{
    mr_qname parsed;
    MR_TRY(mr__qname_parse(text, tables[table].option, &parsed));
    if (parsed.schema[0] == '\0')
        memcpy(parsed.schema, names->schema, sizeof(parsed.schema));
    names->table[table] = parsed;
    return NULL;
}

mr_error *mr__names_fleet_key(const mr_names *names, uint64_t *fleet)
{
    MR_AUTO_BUF identity = {0};
    mr__qname_quote(&identity, &names->table[MR_TABLE_ASSIGNMENTS]);
    mr__qname_quote(&identity, &names->table[MR_TABLE_WORKER_NODES]);
    if (identity.failed)
        return mr__error_nomem();
    *fleet = mr__hash_fnv1a64(identity.data, identity.length);
    return NULL;
}

mr_error *mr__names_channel(const mr_names *names, char out[MR_CHANNEL_MAX])
{
    uint64_t fleet = 0;
    MR_TRY(mr__names_fleet_key(names, &fleet));
    (void)snprintf(out, MR_CHANNEL_MAX, "millrace_%016" PRIx64, fleet);
    return NULL;
}

const char *mr__names_option(mr_table table)
{
    return tables[table].option;
}

const char *mr__names_default(mr_table table)
{
    return tables[table].name;
}
