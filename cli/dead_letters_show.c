/* Dead letters for people and for scripts: the table, and one letter with its payload. */
#include "dead_letters.h"

#include "base64.h"

#include <stdlib.h>
#include <string.h>

/* ---- The table ----------------------------------------------------------------------------- */

enum { STREAM = 3, STATE = 4, ERROR = 6, COLUMNS = 7, ERROR_SHOWN = 100 };

static void fill_row(const PGresult *rows, int row, const char **cell)
{
    bool replay = cli_cell(rows, row, "replay")[0] == 't';
    cell[0] = cli_cell(rows, row, "position");
    cell[1] = cli_cell(rows, row, "consumer");
    cell[2] = cli_cell(rows, row, "event_type");
    cell[STREAM] = cli_format("%s/%s", cli_cell(rows, row, "aggregate_type"),
                              cli_cell(rows, row, "aggregate_id"));
    cell[STATE] = cli_format("%s%s", cli_cell(rows, row, "state"), replay ? ", replay asked" : "");
    cell[5] = cli_cell(rows, row, "attempts");
    const char *error = cli_cell(rows, row, "error");
    size_t length = strlen(error);
    bool cut = length > ERROR_SHOWN;
    length = cut ? ERROR_SHOWN : length;
    while (cut && length > 0 && ((unsigned char)error[length] & 0xC0) == 0x80)
        length--; /* not in the middle of a character */
    cell[ERROR] = cli_format("%.*s%s", (int)length, error, cut ? "…" : "");
}

mr_error *cli_letters_print(const cli_context *cli, const PGresult *rows)
{
    static const cli_column columns[COLUMNS] = {
        {"position", true}, {"consumer", false}, {"event", false}, {"stream", false},
        {"state", false},   {"attempts", true},  {"error", false},
    };
    int count = PQntuples(rows);
    if (cli->json || count == 0)
        return cli_print_rows(cli, rows, "No dead letter matches.");
    const char **cells = cli_alloc((size_t)count * COLUMNS, sizeof(*cells));
    for (int row = 0; row < count; row++)
        fill_row(rows, row, cells + (ptrdiff_t)row * COLUMNS);
    cli_print_table(columns, COLUMNS, cells, count);
    for (int row = 0; row < count; row++) {
        const char **cell = cells + (ptrdiff_t)row * COLUMNS;
        free((void *)cell[STREAM]);
        free((void *)cell[STATE]);
        free((void *)cell[ERROR]);
    }
    free(cells);
    return NULL;
}

/* ---- One letter ---------------------------------------------------------------------------- */

/* The payload's bytes and a NUL, free(); a bytea comes in the server's own writing, the rest as it
 * is. */
static unsigned char *payload_of(const PGresult *rows, int column, size_t *length)
{
    enum { OID_BYTEA = 17 };
    const unsigned char *text = (const unsigned char *)PQgetvalue(rows, 0, column);
    unsigned char *plain = NULL;
    *length = strlen((const char *)text);
    if (PQftype(rows, column) == OID_BYTEA)
        plain = PQunescapeBytea(text, length);
    unsigned char *bytes = cli_alloc(*length + 1, 1);
    memcpy(bytes, plain != NULL ? plain : text, *length);
    PQfreemem(plain);
    return bytes;
}

static json_t *show_json(const PGresult *rows, int column, const unsigned char *bytes,
                         size_t length)
{
    json_t *object = cli_row_json(rows, 0);
    (void)json_object_del(object, "data");
    if (PQgetisnull(rows, 0, column))
        return object;
    json_t *value = json_loadb((const char *)bytes, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    json_t *text = json_stringn((const char *)bytes, length);
    if (value != NULL) {
        (void)json_object_set(object, "data", value);
    } else if (text != NULL) {
        (void)json_object_set(object, "payload", text);
    } else {
        char *encoded = base64_encode(bytes, length);
        (void)json_object_set_new(object, "payload_base64", json_string(encoded));
        free(encoded);
    }
    json_decref(value);
    json_decref(text);
    return object;
}

static void show_text(const PGresult *rows, int column, const unsigned char *bytes, size_t length)
{
    for (int i = 0; i < PQnfields(rows); i++) {
        if (i == column || PQgetisnull(rows, 0, i))
            continue;
        char *before = cli_format("%-16s ", PQfname(rows, i));
        const char *value = PQgetvalue(rows, 0, i);
        bool is_flag = strcmp(PQfname(rows, i), "replay") == 0;
        cli_print_line(before, !is_flag ? value : value[0] == 't' ? "asked for" : "no");
        free(before);
    }
    if (PQgetisnull(rows, 0, column)) {
        cli_print_line("payload          ",
                       "none: the log has no such event, or it has no payload");
        return;
    }
    json_t *text = json_stringn((const char *)bytes, length);
    bool plain = text != NULL && strlen((const char *)bytes) == length;
    json_decref(text);
    char *encoded = plain ? NULL : base64_encode(bytes, length);
    cli_print_line(plain ? "payload          " : "payload (base64) ",
                   plain ? (const char *)bytes : encoded);
    free(encoded);
}

mr_error *cli_letters_show(const cli_context *cli, const PGresult *rows)
{
    int column = PQfnumber(rows, "data");
    size_t length = 0;
    unsigned char *bytes = payload_of(rows, column, &length);
    mr_error *error = NULL;
    if (cli->json)
        error = cli_print_json(show_json(rows, column, bytes, length));
    else
        show_text(rows, column, bytes, length);
    free(bytes);
    return error;
}
