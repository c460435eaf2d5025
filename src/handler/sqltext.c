/* The text of SQL handlers: named parameters to numbered ones, and the relation `batch` in front.
 * Pure. */
#include "handler/sqltext.h"

#include "base/text.h"
#include "pg/session.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool word_start(char c)
{
    return isalpha((unsigned char)c) || c == '_' || ((unsigned char)c & 0x80U) != 0;
}

static bool word_char(char c)
{
    return word_start(c) || isdigit((unsigned char)c) || c == '$';
}

/* Length of a quoted stretch that starts at `p`, including both quotes; a quote doubled inside
 * counts as one. With `escapes` a backslash hides the next character. An open end runs to the end
 * of the text. */
static size_t quoted(const char *p, char quote, bool escapes)
{
    size_t i = 1;
    while (p[i] != '\0') {
        if (escapes && p[i] == '\\' && p[i + 1] != '\0') {
            i += 2;
        } else if (p[i] == quote) {
            if (p[i + 1] != quote)
                return i + 1;
            i += 2;
        } else {
            i++;
        }
    }
    return i;
}

/* Comments nest in SQL. */
static size_t block_comment(const char *p)
{
    size_t i = 2;
    int depth = 1;
    while (p[i] != '\0' && depth > 0) {
        if (strncmp(p + i, "/*", 2) == 0) {
            depth++;
            i += 2;
        } else if (strncmp(p + i, "*/", 2) == 0) {
            depth--;
            i += 2;
        } else {
            i++;
        }
    }
    return i;
}

/* $tag$ … $tag$; 0 when the dollar does not open one. */
static size_t dollar_quote(const char *p)
{
    size_t tag = 1;
    if (isdigit((unsigned char)p[1]))
        return 0;
    while (word_char(p[tag]) && p[tag] != '$')
        tag++;
    if (p[tag] != '$')
        return 0;
    tag++;
    for (size_t i = tag; p[i] != '\0'; i++)
        if (p[i] == '$' && strncmp(p + i, p, tag) == 0)
            return i + tag;
    return strlen(p);
}

/* Length of something at `p` in which a colon means nothing: quotes, comments, words; 0 when `p` is
 * an ordinary character. */
static size_t opaque(const char *p)
{
    if ((*p == 'e' || *p == 'E') && p[1] == '\'')
        return 1 + quoted(p + 1, '\'', true);
    if (*p == '\'' || *p == '"')
        return quoted(p, *p, false);
    if (strncmp(p, "--", 2) == 0)
        return strcspn(p, "\n");
    if (strncmp(p, "/*", 2) == 0)
        return block_comment(p);
    if (*p == '$')
        return dollar_quote(p);
    if (word_start(*p)) {
        size_t length = 1;
        while (word_char(p[length]))
            length++;
        return length;
    }
    return 0;
}

size_t mr__sqltext_opaque(const char *p)
{
    return opaque(p);
}

/* Numbers are ours: one in the text would mean another value, or one that is never given. */
static mr_error *refuse_numbers(const char *text)
{
    for (const char *p = text; *p != '\0';) {
        size_t skip = opaque(p);
        if (skip == 0 && p[0] == '$' && isdigit((unsigned char)p[1]))
            return mr__error(MR_E_CONFIG,
                             "$%d is no parameter of a handler; name the column that is meant",
                             p[1] - '0');
        p += skip > 0 ? skip : 1;
    }
    return NULL;
}

/* ---- Scripts ------------------------------------------------------------------------------- */

static bool word_is(const char *p, size_t length, const char *word)
{
    return strlen(word) == length && strncasecmp(p, word, length) == 0;
}

/* What stands at `p` leads deeper into the body of a function in plain SQL, `BEGIN ATOMIC … END`,
 * whose statements end by semicolons too, or out of it. */
static int body_step(const char *p, size_t length, bool begun, int inside)
{
    if ((begun && word_is(p, length, "atomic")) || (inside > 0 && word_is(p, length, "case")))
        return 1;
    return inside > 0 && word_is(p, length, "end") ? -1 : 0;
}

/* The end of the statement at `p`: behind its semicolon, or the end of the text. */
static const char *statement_end(const char *p)
{
    int inside = 0, parens = 0;
    bool begun = false; /* the last word was BEGIN */
    while (*p != '\0') {
        size_t skip = opaque(p);
        if (skip > 0) {
            inside += body_step(p, skip, begun, inside);
            begun = word_is(p, skip, "begin") || (begun && !word_start(*p));
            p += skip;
            continue;
        }
        parens += *p == '(' ? 1 : *p == ')' ? -1 : 0;
        if (*p++ == ';' && inside == 0 && parens <= 0)
            break;
    }
    return p;
}

const char *mr__sqltext_control(const char *script)
{
    for (const char *p = script; *p != '\0'; p = statement_end(p)) {
        const char *word = mr__tx_control_word(p);
        if (word != NULL)
            return word;
    }
    return NULL;
}

/* ---- Named parameters ---------------------------------------------------------------------- */

static const char *param_type(int param)
{
    switch (param) {
    case MR_COL_POSITION:
    case MR_COL_AGGREGATE_VERSION:
        return "int8";
    case MR_COL_EVENT_VERSION:
        return "int4";
    case MR_COL_EVENT_ID:
        return "uuid";
    case MR_COL_PAYLOAD:
        return "bytea";
    case MR_COL_METADATA:
    case MR_SQL_DATA:
        return "jsonb";
    case MR_COL_CREATED_AT:
        return "timestamptz";
    default:
        return "text";
    }
}

static mr_error *find_param(const void *user, const char *name, int *param, const char **type)
{
    (void)user;
    *param = strcmp(name, "data") == 0 ? (int)MR_SQL_DATA : mr__log_column_find(name);
    if (*param >= 0) {
        *type = param_type(*param);
        return NULL;
    }
    const char *names[MR_SQL_PARAM_COUNT];
    for (int i = 0; i < MR_COL_COUNT; i++)
        names[i] = mr__log_column_name((mr_column)i);
    names[MR_SQL_DATA] = "data";
    int nearest = mr__text_nearest(name, names, MR_SQL_PARAM_COUNT);
    if (nearest >= 0)
        return mr__error(MR_E_CONFIG, "unknown parameter :%s; did you mean :%s?", name,
                         names[nearest]);
    return mr__error(
        MR_E_CONFIG,
        "unknown parameter :%s; there are :data, :payload, :metadata, :global_position, "
        ":aggregate_type, :aggregate_id, :aggregate_version, :event_id, :event_type, "
        ":event_version, :trace_id, :correlation_id, :causation_id, :created_at",
        name);
}

/* The number of a parameter in the text, a new one at its first use; 0 = no memory. */
static int number_of(mr_sql_text *text, int param)
{
    for (int i = 0; i < text->count; i++)
        if (text->params[i] == param)
            return i + 1;
    int *grown = realloc(text->params, (size_t)(text->count + 1) * sizeof(*grown));
    if (grown == NULL)
        return 0;
    text->params = grown;
    text->params[text->count++] = param;
    return text->count;
}

typedef struct naming {
    mr_sql_find_fn find;
    const void *user;
    mr_sql_text *out;
} naming;

/* The parameter whose name starts at `name`; `*length` is the name's. */
static mr_error *put_param(const naming *n, const char *name, mr_buf *sql, size_t *length)
{
    char word[64];
    size_t count = 1;
    while (word_char(name[count]))
        count++;
    if (count >= sizeof(word))
        return mr__error(MR_E_CONFIG, "the parameter :%.40s… is too long a name", name);
    memcpy(word, name, count);
    word[count] = '\0';
    *length = count;
    int param = 0;
    const char *type = NULL;
    MR_TRY(n->find(n->user, word, &param, &type));
    int number = number_of(n->out, param);
    if (number == 0)
        return mr__error_nomem();
    if (type == NULL)
        mr__buf_printf(sql, "($%d)", number);
    else
        mr__buf_printf(sql, "($%d::%s)", number, type);
    return NULL;
}

static mr_error *put_text(const naming *n, const char *text, mr_buf *sql)
{
    const char *p = text;
    while (*p != '\0') {
        size_t skip = opaque(p);
        if (skip > 0) {
            mr__buf_add(sql, p, skip);
            p += skip;
        } else if (p[0] == ':' && p[1] == ':') {
            mr__buf_puts(sql, "::");
            p += 2;
        } else if (p[0] == ':' && word_start(p[1])) {
            size_t length = 0;
            MR_TRY(put_param(n, p + 1, sql, &length));
            p += 1 + length;
        } else {
            mr__buf_putc(sql, *p++);
        }
    }
    return NULL;
}

mr_error *mr__sqltext_named(const char *text, mr_sql_find_fn find, const void *user,
                            mr_sql_text *out)
{
    MR_TRY(refuse_numbers(text));
    mr_sql_text result = {0};
    MR_AUTO_BUF sql = {0};
    naming n = {.find = find, .user = user, .out = &result};
    mr_error *error = put_text(&n, text, &sql);
    if (error == NULL) {
        result.sql = mr__buf_take(&sql);
        if (result.sql == NULL)
            error = mr__error_nomem();
    }
    if (error != NULL) {
        mr__sqltext_free(&result);
        return error;
    }
    *out = result;
    return NULL;
}

mr_error *mr__sqltext_params(const char *text, mr_sql_text *out)
{
    return mr__sqltext_named(text, find_param, NULL, out);
}

/* ---- The relation `batch` ------------------------------------------------------------------ */

static const char *skip_blank(const char *p)
{
    for (;;) {
        if (isspace((unsigned char)*p))
            p++;
        else if (strncmp(p, "--", 2) == 0)
            p += strcspn(p, "\n");
        else if (strncmp(p, "/*", 2) == 0)
            p += block_comment(p);
        else
            return p;
    }
}

static bool is_word(const char *p, const char *word)
{
    size_t length = strlen(word);
    return strncasecmp(p, word, length) == 0 && !word_char(p[length]);
}

mr_error *mr__sqltext_batch(const char *text, const char *definition, char **out)
{
    MR_TRY(mr__error_prefix(refuse_numbers(text), "sql_batch"));
    const char *rest = skip_blank(text);
    const char *recursive = "";
    bool merged = is_word(rest, "with");
    if (merged) {
        rest = skip_blank(rest + strlen("with"));
        if (is_word(rest, "recursive")) {
            recursive = "RECURSIVE ";
            rest = skip_blank(rest + strlen("recursive"));
        }
    }
    MR_AUTO_BUF sql = {0};
    /* NOT MATERIALIZED: only the columns that the statement uses are computed, `data` above all. */
    mr__buf_printf(&sql, "WITH %sbatch AS NOT MATERIALIZED (%s)%s%s", recursive, definition,
                   merged ? ", " : " ", rest);
    *out = mr__buf_take(&sql);
    return *out == NULL ? mr__error_nomem() : NULL;
}

void mr__sqltext_free(mr_sql_text *text)
{
    free(text->sql);
    free(text->params);
    *text = (mr_sql_text){0};
}
