/* Input of one JSON value a line, written in batches. */
#include "line_batches.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What became of the input so far. */
static char *tell_done(const line_batches *b)
{
    if (b->waiting == 0 && b->done > 0)
        return cli_format("%" PRId64 " %s were %s", b->done, b->things, b->past);
    if (b->unsure)
        return cli_format("Whether this batch was %s is not known; %" PRId64
                          " %s of earlier batches were",
                          b->past, b->done, b->things);
    if (b->done == 0)
        return cli_format("Nothing was %s", b->past);
    return cli_format("Nothing of this batch was %s; %" PRId64 " %s of earlier batches were",
                      b->past, b->done, b->things);
}

/* `first` to the current line are what the error is about, unless it is about b->culprit. */
static mr_error *at_line(const line_batches *b, mr_error *error, int64_t first)
{
    if (error == NULL)
        return NULL;
    mr_code code = mr_error_code(error);
    bool rejected = code == MR_E_PARSE || code == MR_E_USAGE || code == MR_E_CONFIG;
    bool one = b->culprit > 0 || first == b->line;
    char *where = one ? cli_format("line %" PRId64, b->culprit > 0 ? b->culprit : b->line)
                      : cli_format("lines %" PRId64 " to %" PRId64, first, b->line);
    char *kept = tell_done(b);
    mr_error *placed = mr_error_new(rejected ? MR_E_PARSE : code, mr_error_retryable(error),
                                    "%s: %s. %s", where, mr_error_message(error), kept);
    free(kept);
    free(where);
    mr_error_free(error);
    return placed;
}

static mr_error *flush(line_batches *b, int64_t *first)
{
    if (b->waiting == 0)
        return NULL;
    CLI_TRY(at_line(b, b->flush(b->user), *first));
    b->done += b->waiting;
    b->batches++;
    b->waiting = 0;
    if (isatty(STDERR_FILENO) != 0)
        (void)fprintf(stderr, "\r%" PRId64 " %s", b->done, b->things);
    if (b->after != NULL)
        CLI_TRY(at_line(b, b->after(b->user), *first));
    *first = b->line + 1;
    return NULL;
}

static mr_error *read_lines(line_batches *b, FILE *input)
{
    char *text = NULL;
    size_t size = 0;
    ssize_t length;
    int64_t first = 1;
    mr_error *error = NULL;
    while (error == NULL && (length = getline(&text, &size, input)) >= 0) {
        b->line++;
        if ((size_t)length == strspn(text, " \t\r\n"))
            continue;
        b->waiting++;
        error = at_line(b, b->take(b->user, text, (size_t)length), b->line);
        if (error != NULL)
            break;
        if (b->waiting >= b->most)
            error = flush(b, &first);
    }
    free(text);
    if (error == NULL && ferror(input))
        error = at_line(b, cli_io_error("cannot read the input"), first);
    return error != NULL ? error : flush(b, &first);
}

mr_error *line_batches_read(line_batches *b, FILE *input)
{
    mr_error *error = read_lines(b, input);
    if (b->batches > 0 && isatty(STDERR_FILENO) != 0)
        (void)fputs("\r\033[K", stderr);
    return error;
}

mr_error *line_batches_file(line_batches *b, const char *name)
{
    if (name == NULL || strcmp(name, "-") == 0)
        return line_batches_read(b, stdin);
    FILE *input = fopen(name, "re");
    if (input == NULL)
        return cli_io_error("cannot read %s", name);
    mr_error *error = line_batches_read(b, input);
    (void)fclose(input);
    return error;
}
