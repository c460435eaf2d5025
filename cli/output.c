/* Rows for people and for scripts: an aligned table, or JSON typed by the columns' types. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* OIDs of built-in types never change; libpq has no header for them. */
enum {
    OID_BOOL = 16,
    OID_INT8 = 20,
    OID_INT2 = 21,
    OID_INT4 = 23,
    OID_OID = 26,
    OID_JSON = 114,
    OID_FLOAT4 = 700,
    OID_FLOAT8 = 701,
    OID_NUMERIC = 1700,
    OID_JSONB = 3802,
};

static bool is_number(Oid type)
{
    return type == OID_INT8 || type == OID_INT2 || type == OID_INT4 || type == OID_OID ||
           type == OID_FLOAT4 || type == OID_FLOAT8 || type == OID_NUMERIC;
}

/* NULL when the text is no JSON number (NaN, Infinity): the caller keeps it as text. */
static json_t *number_of(const char *text)
{
    return json_loads(text, JSON_DECODE_ANY, NULL);
}

static json_t *cell_json(const PGresult *rows, int row, int column)
{
    if (PQgetisnull(rows, row, column))
        return json_null();
    const char *text = PQgetvalue(rows, row, column);
    Oid type = PQftype(rows, column);
    json_t *value = NULL;
    if (type == OID_BOOL)
        value = json_boolean(text[0] == 't');
    else if (is_number(type) || type == OID_JSON || type == OID_JSONB)
        value = number_of(text);
    return value != NULL ? value : json_string(text);
}

mr_error *cli_print_json(json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY);
    json_decref(value);
    if (text == NULL)
        return mr_error_new(MR_E_INTERNAL, false, "the output cannot be written as JSON");
    (void)printf("%s\n", text);
    free(text);
    return NULL;
}

json_t *cli_row_json(const PGresult *rows, int row)
{
    json_t *object = json_object();
    for (int column = 0; column < PQnfields(rows); column++)
        (void)json_object_set_new(object, PQfname(rows, column), cell_json(rows, row, column));
    return object;
}

json_t *cli_rows_json(const PGresult *rows, int most)
{
    json_t *list = json_array();
    for (int row = 0; row < PQntuples(rows) && row < most; row++)
        (void)json_array_append_new(list, cli_row_json(rows, row));
    return list;
}

const char *cli_cell(const PGresult *rows, int row, const char *column)
{
    int number = PQfnumber(rows, column);
    return number < 0 ? "" : PQgetvalue(rows, row, number);
}

/* Columns on the screen that `text` takes: code points, with control bytes shown as one '?'. */
static size_t width_of(const char *text)
{
    size_t width = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++)
        width += (*p & 0xC0) != 0x80;
    return width;
}

/* Control characters are one byte or, from U+0080 to U+009F, the two bytes C2 80 to C2 9F. */
char *cli_plain(const char *text, bool lines)
{
    char *plain = cli_strdup(text), *out = plain;
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++) {
        bool wide = p[0] == 0xC2 && p[1] >= 0x80 && p[1] <= 0x9F;
        bool control = wide || *p < 0x20 || *p == 0x7F;
        if (!control || (lines && (*p == '\n' || *p == '\t')))
            *out++ = (char)*p;
        else
            *out++ = *p == '\n' ? ' ' : '?';
        p += wide;
    }
    *out = '\0';
    return plain;
}

static void put_safe(const char *text)
{
    char *plain = cli_plain(text, false);
    (void)fputs(plain, stdout);
    free(plain);
}

void cli_print_line(const char *before, const char *data)
{
    (void)fputs(before, stdout);
    put_safe(data);
    (void)putchar('\n');
}

static void put_padded(const char *text, size_t width, bool right, bool last)
{
    size_t pad = width > width_of(text) ? width - width_of(text) : 0;
    if (right)
        (void)printf("%*s", (int)pad, "");
    put_safe(text);
    if (!right && !last)
        (void)printf("%*s", (int)pad, "");
    (void)fputs(last ? "\n" : "  ", stdout);
}

void cli_print_table(const cli_column *columns, int count, const char *const *cells, int rows)
{
    size_t *width = cli_alloc((size_t)count + 1, sizeof(*width));
    for (int column = 0; column < count; column++) {
        width[column] = width_of(columns[column].title);
        for (int row = 0; row < rows; row++) {
            size_t w = width_of(cells[row * count + column]);
            width[column] = w > width[column] ? w : width[column];
        }
    }
    for (int row = -1; row < rows; row++)
        for (int column = 0; column < count; column++)
            put_padded(row < 0 ? columns[column].title : cells[row * count + column], width[column],
                       columns[column].number, column == count - 1);
    free(width);
}

static void print_rows(const PGresult *rows)
{
    int columns = PQnfields(rows), count = PQntuples(rows);
    cli_column *titles = cli_alloc((size_t)columns + 1, sizeof(*titles));
    const char **cells = cli_alloc((size_t)(columns * count) + 1, sizeof(*cells));
    for (int column = 0; column < columns; column++) {
        titles[column] = (cli_column){PQfname(rows, column), is_number(PQftype(rows, column))};
        for (int row = 0; row < count; row++)
            cells[row * columns + column] = PQgetvalue(rows, row, column);
    }
    cli_print_table(titles, columns, cells, count);
    free(cells);
    free(titles);
}

mr_error *cli_print_rows(const cli_context *cli, const PGresult *rows, const char *empty)
{
    if (cli->json)
        return cli_print_json(cli_rows_json(rows, PQntuples(rows)));
    if (PQntuples(rows) == 0)
        (void)printf("%s\n", empty);
    else
        print_rows(rows);
    return NULL;
}
