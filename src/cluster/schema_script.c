/* The schema as one SQL script, and the pieces that applying it shares. Pure. */
#include "base/hash.h"
#include "base/text.h"
#include "cluster/schema.h"
#include "cluster/schema_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int mr__schema_file_version(const mr_embed *file)
{
    return (int)strtol(file->name, NULL, 10); /* the build names them: always digits */
}

int mr__schema_latest(void)
{
    int latest = 0;
    for (const mr_embed *file = mr__sql_migrations; file->name != NULL; file++)
        latest = mr__schema_file_version(file);
    return latest;
}

/* The file's name without ".sql". */
static void stem(const mr_embed *file, char out[MR_IDENT_MAX + 1])
{
    (void)snprintf(out, MR_IDENT_MAX + 1, "%.*s", (int)(strlen(file->name) - 4), file->name);
}

void mr__schema_record(const mr_embed *file, const mr_template_input *input, mr_buf *out)
{
    char name[MR_IDENT_MAX + 1], fleet[MR_FLEET_MAX];
    stem(file, name);
    mr__names_fleet(input->names, fleet);
    mr__buf_puts(out, "INSERT INTO ");
    mr__qname_quote(out, &input->names->table[MR_TABLE_MIGRATIONS]);
    mr__buf_printf(out, " (version, fleet, name, applied_by) VALUES (%d, ",
                   mr__schema_file_version(file));
    mr__literal_quote(out, fleet);
    mr__buf_puts(out, ", ");
    mr__literal_quote(out, name);
    mr__buf_puts(out, ", 'millrace " MR_VERSION "') ON CONFLICT DO NOTHING;\n");
}

mr_error *mr__schema_function(const mr_embed *file, const mr_template_input *input, bool of_log,
                              mr_buf *out, char name[MR_IDENT_MAX + 1], char mark[64])
{
    char base[MR_IDENT_MAX + 1], plain[MR_IDENT_MAX + 1], comment[64], fleet[MR_FLEET_MAX] = "";
    stem(file, base);
    if (!of_log)
        mr__names_fleet(input->names, fleet);
    mr__ident_derive(plain, base, fleet[0] == '\0' ? "" : "_", fleet);
    size_t start = out->length;
    MR_TRY(mr__template_render(file, input, out));
    (void)snprintf(comment, sizeof(comment), "millrace " MR_VERSION " %016" PRIx64,
                   mr__hash_fnv1a64(out->data + start, out->length - start));
    mr__buf_puts(out, "COMMENT ON FUNCTION ");
    mr__ident_quote(out, input->names->schema);
    mr__buf_putc(out, '.');
    mr__ident_quote(out, plain);
    mr__buf_puts(out, " IS ");
    mr__literal_quote(out, comment);
    mr__buf_puts(out, ";\n");
    if (name != NULL)
        memcpy(name, plain, sizeof(plain));
    if (mark != NULL)
        memcpy(mark, comment, sizeof(comment));
    return out->failed ? mr__error_nomem() : NULL;
}

static size_t add_prefix(const char *schema, const char **out, size_t count)
{
    if (schema[0] == '\0' || strcmp(schema, "public") == 0)
        return count;
    for (size_t i = 0; i < count; i++)
        if (strcmp(out[i], schema) == 0)
            return count;
    out[count] = schema;
    return count + 1;
}

size_t mr__schema_prefixes(const mr_template_input *input, const char *out[MR_SCHEMAS_MAX])
{
    size_t count = add_prefix(input->names->schema, out, 0);
    for (int i = 0; i < MR_TABLE_COUNT; i++)
        count = add_prefix(input->names->table[i].schema, out, count);
    if (input->shape != NULL) {
        count = add_prefix(input->shape->table.schema, out, count);
        count = add_prefix(input->shape->heads.schema, out, count);
    }
    return count;
}

static mr_error *add_files(const mr_embed *file, const mr_template_input *input, mr_buf *out)
{
    for (; file->name != NULL; file++) {
        MR_TRY(mr__template_render(file, input, out));
        mr__buf_putc(out, '\n');
    }
    return NULL;
}

static mr_error *add_functions(const mr_embed *file, const mr_template_input *input, bool of_log,
                               mr_buf *out)
{
    for (; file->name != NULL; file++) {
        MR_TRY(mr__schema_function(file, input, of_log, out, NULL, NULL));
        mr__buf_putc(out, '\n');
    }
    return NULL;
}

static mr_error *add_migrations(const mr_template_input *input, mr_buf *out)
{
    MR_TRY(add_files(mr__sql_bootstrap, input, out));
    for (const mr_embed *file = mr__sql_migrations; file->name != NULL; file++) {
        MR_TRY(mr__template_render(file, input, out));
        mr__schema_record(file, input, out);
        mr__buf_putc(out, '\n');
    }
    return NULL;
}

mr_error *mr__schema_script(const mr_schema_input *input, char **out)
{
    MR_AUTO_BUF script = {0};
    mr_log_shape shape;
    mr_template_input names = {.names = input->names};
    if (!input->no_log) {
        mr__log_shape_assume(input->log, "public", &shape);
        names.shape = &shape;
    }
    mr__buf_printf(&script,
                   "-- Schema of Millrace %s, version %d. May be run again: what exists is kept.\n",
                   MR_VERSION, mr__schema_latest());
    const char *schemas[MR_SCHEMAS_MAX];
    size_t count = mr__schema_prefixes(&names, schemas);
    for (size_t i = 0; i < count; i++) {
        mr__buf_puts(&script, "CREATE SCHEMA IF NOT EXISTS ");
        mr__ident_quote(&script, schemas[i]);
        mr__buf_puts(&script, ";\n");
    }
    mr__buf_putc(&script, '\n');
    MR_TRY(add_migrations(&names, &script));
    MR_TRY(add_functions(mr__sql_functions, &names, false, &script));
    if (!input->no_log) {
        MR_TRY(add_files(mr__sql_log, &names, &script));
        MR_TRY(add_functions(mr__sql_log_functions, &names, true, &script));
    }
    if (script.failed)
        return mr__error_nomem();
    *out = mr__buf_take(&script);
    return *out == NULL ? mr__error_nomem() : NULL;
}
