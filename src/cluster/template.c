/* Fills the embedded SQL files with the configured names: every identifier comes out quoted. Pure.
 */
#include "cluster/template.h"

#include "base/hash.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WORD = 64, MAX_DEPTH = 8 };

/* One rendering under way. */
typedef struct render {
    const mr_template_input *input;
    const char *file;
    mr_buf *out;
    bool shown[MAX_DEPTH]; /* whether each open block's text is kept */
    int depth;
} render;

void mr__names_fleet(const mr_names *names, char out[MR_FLEET_MAX])
{
    uint32_t hash = 0;
    bool own = false;
    for (int i = 0; i < MR_TABLE_COUNT; i++) {
        if (i == MR_TABLE_MIGRATIONS) /* where they are recorded does not make another fleet */
            continue;
        const mr_qname *table = &names->table[i];
        const char *usual = mr__names_default((mr_table)i);
        bool renamed = strcmp(table->schema, names->schema) != 0 || strcmp(table->name, usual) != 0;
        /* Tables that came with a later version must not make other fleets of older ones. */
        if (i >= MR_TABLE_JOBS && !renamed)
            continue;
        own = own || renamed;
        hash = hash * 31 + mr__hash_fnv1a(table->schema, strlen(table->schema));
        hash = hash * 31 + mr__hash_fnv1a(table->name, strlen(table->name));
    }
    out[0] = '\0';
    if (own)
        (void)snprintf(out, MR_FLEET_MAX, "%08x", hash);
}

void mr__names_function(const mr_names *names, const char *base, mr_buf *out)
{
    char fleet[MR_FLEET_MAX], name[MR_IDENT_MAX + 1];
    mr__names_fleet(names, fleet);
    mr__ident_derive(name, base, fleet[0] == '\0' ? "" : "_", fleet);
    mr__ident_quote(out, names->schema);
    mr__buf_putc(out, '.');
    mr__ident_quote(out, name);
}

static mr_error *bad(const render *r, const char *word)
{
    return mr__error(MR_E_INTERNAL, "%s: unknown placeholder {{%s}}", r->file, word);
}

/* The control plane's table of that default name, or the log's. */
static bool find_table(const render *r, const char *word, mr_qname *out)
{
    const mr_log_shape *shape = r->input->shape;
    bool events = strcmp(word, "events") == 0;
    if (events || strcmp(word, "heads") == 0) {
        if (shape == NULL)
            return false;
        *out = events ? shape->table : shape->heads;
        return true;
    }
    for (int i = 0; i < MR_TABLE_COUNT; i++) {
        if (strcmp(word, mr__names_default((mr_table)i)) == 0) {
            *out = r->input->names->table[i];
            return true;
        }
    }
    return false;
}

static int find_head(const char *word)
{
    static const char *const parts[] = {"type", "id", "version"};
    for (int i = 0; i < 3; i++)
        if (strcmp(word, parts[i]) == 0)
            return i;
    return -1;
}

/* The insert can fill an event id that is a UUID or text; any other is left to its default. */
static bool event_id_needed(const mr_log_shape *shape)
{
    const char *type = shape->column_type[MR_COL_EVENT_ID];
    return strcmp(type, "pg_catalog.uuid") == 0 || strcmp(type, "pg_catalog.text") == 0 ||
           strcmp(type, "pg_catalog.\"varchar\"") == 0 || strcmp(type, "pg_catalog.varchar") == 0;
}

static mr_error *flag_value(const render *r, const char *word, bool *value)
{
    const mr_log_shape *shape = r->input->shape;
    if (shape == NULL)
        return bad(r, word);
    int column = mr__log_column_find(word);
    if (column >= 0)
        *value = shape->column[column][0] != '\0';
    else if (strcmp(word, "payload_bytea") == 0)
        *value = shape->payload_kind == MR_PAYLOAD_BYTEA;
    else if (strcmp(word, "event_id_needed") == 0)
        *value = event_id_needed(shape);
    else if (strcmp(word, "created_at_needed") == 0)
        *value = shape->column[MR_COL_CREATED_AT][0] != '\0' && !shape->created_at_default;
    else if (strcmp(word, "heads_updated_at") == 0)
        *value = shape->heads_updated_at;
    else
        return bad(r, word);
    return NULL;
}

static mr_error *put_index(render *r, const char *rest)
{
    const char *colon = strchr(rest, ':');
    char table[MAX_WORD], suffix[MAX_WORD + 1], name[MR_IDENT_MAX + 1];
    if (colon == NULL)
        return bad(r, rest);
    (void)snprintf(table, sizeof(table), "%.*s", (int)(colon - rest), rest);
    (void)snprintf(suffix, sizeof(suffix), "_%s", colon + 1);
    mr_qname found;
    if (!find_table(r, table, &found))
        return bad(r, rest);
    mr__ident_derive(name, "idx_", found.name, suffix);
    mr__ident_quote(r->out, name);
    return NULL;
}

/* A sequence or a partition that goes with a table: beside it, named after it. */
static mr_error *put_relation(const render *r, const char *rest, mr_buf *out)
{
    const char *colon = strchr(rest, ':');
    char table[MAX_WORD], suffix[MAX_WORD + 1];
    mr_qname found;
    if (colon == NULL)
        return bad(r, rest);
    (void)snprintf(table, sizeof(table), "%.*s", (int)(colon - rest), rest);
    (void)snprintf(suffix, sizeof(suffix), "_%s", colon + 1);
    if (!find_table(r, table, &found))
        return bad(r, rest);
    mr_qname name = found;
    mr__ident_derive(name.name, "", found.name, suffix);
    mr__qname_quote(out, &name);
    return NULL;
}

/* {{kind:rest}} for what belongs to the log. */
static mr_error *put_log_word(render *r, const char *kind, const char *rest)
{
    const mr_log_shape *shape = r->input->shape;
    if (shape == NULL)
        return bad(r, rest);
    int column = mr__log_column_find(rest), head = find_head(rest);
    if (strcmp(kind, "col") == 0 && column >= 0)
        mr__ident_quote(r->out, shape->column[column]);
    else if (strcmp(kind, "type") == 0 && column >= 0)
        mr__buf_puts(r->out, shape->column_type[column]);
    else if (strcmp(kind, "type_literal") == 0 && column >= 0)
        mr__literal_quote(r->out, shape->column_type[column]);
    else if (strcmp(kind, "head") == 0 && head >= 0)
        mr__ident_quote(r->out, shape->heads_column[head]);
    else if (strcmp(kind, "headtype") == 0 && head >= 0)
        mr__buf_puts(r->out, shape->heads_column_type[head]);
    else
        return bad(r, rest);
    return NULL;
}

static mr_error *put_plain_word(render *r, const char *word)
{
    const mr_names *names = r->input->names;
    mr_qname table;
    if (find_table(r, word, &table)) {
        mr__qname_quote(r->out, &table);
    } else if (strcmp(word, "schema") == 0) {
        mr__ident_quote(r->out, names->schema);
    } else if (strcmp(word, "schema_literal") == 0) {
        mr__literal_quote(r->out, names->schema);
    } else if (strcmp(word, "program") == 0) {
        mr__literal_quote(r->out, "millrace " MR_VERSION);
    } else if (strcmp(word, "fleet") == 0) {
        char fleet[MR_FLEET_MAX];
        mr__names_fleet(names, fleet);
        mr__literal_quote(r->out, fleet);
    } else if (strcmp(word, "channel") == 0) {
        char channel[MR_CHANNEL_MAX];
        MR_TRY(mr__names_channel(names, channel));
        mr__literal_quote(r->out, channel);
    } else if (strcmp(word, "log_name") == 0 && r->input->shape != NULL) {
        MR_AUTO_BUF quoted = {0};
        mr__qname_quote(&quoted, &r->input->shape->table);
        mr__literal_quote(r->out, mr__buf_text(&quoted));
    } else {
        return bad(r, word);
    }
    return NULL;
}

static mr_error *open_block(render *r, const char *flag, bool wanted)
{
    bool value = false;
    MR_TRY(flag_value(r, flag, &value));
    if (r->depth == MAX_DEPTH)
        return mr__error(MR_E_INTERNAL, "%s: blocks nested too deep", r->file);
    bool outer = r->depth == 0 || r->shown[r->depth - 1];
    r->shown[r->depth++] = outer && value == wanted;
    return NULL;
}

static mr_error *put_word(render *r, const char *word)
{
    if (strncmp(word, "if:", 3) == 0)
        return open_block(r, word + 3, true);
    if (strncmp(word, "unless:", 7) == 0)
        return open_block(r, word + 7, false);
    if (strcmp(word, "end") == 0) {
        if (r->depth == 0)
            return mr__error(MR_E_INTERNAL, "%s: {{end}} without a block", r->file);
        r->depth--;
        return NULL;
    }
    if (r->depth > 0 && !r->shown[r->depth - 1])
        return NULL;
    if (strncmp(word, "idx:", 4) == 0)
        return put_index(r, word + 4);
    if (strncmp(word, "fn:", 3) == 0) {
        mr__names_function(r->input->names, word + 3, r->out);
        return NULL;
    }
    if (strncmp(word, "rel:", 4) == 0)
        return put_relation(r, word + 4, r->out);
    if (strncmp(word, "rellit:", 7) == 0) {
        MR_AUTO_BUF name = {0};
        MR_TRY(put_relation(r, word + 7, &name));
        mr__literal_quote(r->out, mr__buf_text(&name));
        return NULL;
    }
    if (strncmp(word, "tablelit:", 9) == 0) {
        MR_AUTO_BUF name = {0};
        mr_qname table;
        if (!find_table(r, word + 9, &table))
            return bad(r, word);
        mr__qname_quote(&name, &table);
        mr__literal_quote(r->out, mr__buf_text(&name));
        return NULL;
    }
    const char *colon = strchr(word, ':');
    if (colon == NULL)
        return put_plain_word(r, word);
    char kind[MAX_WORD];
    (void)snprintf(kind, sizeof(kind), "%.*s", (int)(colon - word), word);
    return put_log_word(r, kind, colon + 1);
}

static bool is_block_word(const char *word)
{
    return strncmp(word, "if:", 3) == 0 || strncmp(word, "unless:", 7) == 0 ||
           strcmp(word, "end") == 0;
}

/* Renders the placeholder at `p` ("{{…") and returns where the text goes on. */
static mr_error *placeholder(render *r, const char *start, const char *p, const char **next)
{
    const char *close = strstr(p, "}}");
    char word[2 * MAX_WORD];
    if (close == NULL || (size_t)(close - p - 2) >= sizeof(word))
        return mr__error(MR_E_INTERNAL, "%s: a placeholder is never closed", r->file);
    (void)snprintf(word, sizeof(word), "%.*s", (int)(close - p - 2), p + 2);
    MR_TRY(put_word(r, word));
    *next = close + 2;
    bool alone = (p == start || p[-1] == '\n') && close[2] == '\n';
    if (alone && is_block_word(word))
        (*next)++;
    return NULL;
}

/* Function bodies stand between $mr$ marks, which a name must not end early. */
static mr_error *check_names(const mr_template_input *input)
{
    MR_AUTO_BUF all = {0};
    mr__buf_puts(&all, input->names->schema);
    for (int i = 0; i < MR_TABLE_COUNT; i++)
        mr__qname_quote(&all, &input->names->table[i]);
    if (input->shape != NULL) {
        mr__qname_quote(&all, &input->shape->table);
        mr__qname_quote(&all, &input->shape->heads);
        for (int i = 0; i < MR_COL_COUNT; i++)
            mr__ident_quote(&all, input->shape->column[i]);
    }
    if (all.failed)
        return mr__error_nomem();
    if (strstr(mr__buf_text(&all), "$mr$") != NULL)
        return mr__error(MR_E_CONFIG, "a table's name must not hold the text $mr$");
    return NULL;
}

mr_error *mr__template_render(const mr_embed *file, const mr_template_input *input, mr_buf *out)
{
    MR_TRY(check_names(input));
    render r = {.input = input, .file = file->name, .out = out};
    const char *p = file->text;
    while (*p != '\0') {
        if (p[0] == '{' && p[1] == '{') {
            MR_TRY(placeholder(&r, file->text, p, &p));
            continue;
        }
        if (r.depth == 0 || r.shown[r.depth - 1])
            mr__buf_putc(out, *p);
        p++;
    }
    if (r.depth != 0)
        return mr__error(MR_E_INTERNAL, "%s: a block is never closed", file->name);
    return out->failed ? mr__error_nomem() : NULL;
}
