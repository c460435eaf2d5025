/* What the configuration says about the log: table, heads table, column names. */
#include "log/spec.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *stream_name;
    bool required;
} columns[MR_COL_COUNT] = {
#define COLUMN_ROW(symbol, name, stream_name, required) {name, stream_name, required},
    MR_COLUMNS(COLUMN_ROW)
#undef COLUMN_ROW
};

void mr__log_spec_init(mr_log_spec *spec)
{
    *spec = (mr_log_spec){0};
    (void)snprintf(spec->table.name, sizeof(spec->table.name), "events");
}

const char *mr__log_spec_column(const mr_log_spec *spec, mr_naming naming, mr_column column)
{
    if (spec->column[column][0] != '\0')
        return spec->column[column];
    return naming == MR_NAMING_STREAM ? columns[column].stream_name : columns[column].name;
}

int mr__log_column_find(const char *name)
{
    for (int i = 0; i < MR_COL_COUNT; i++)
        if (strcmp(columns[i].name, name) == 0 || strcmp(columns[i].stream_name, name) == 0)
            return i;
    return -1;
}

const char *mr__log_column_name(mr_column column)
{
    return columns[column].name;
}

bool mr__log_column_required(mr_column column)
{
    return columns[column].required;
}
