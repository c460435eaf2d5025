/* Any bytes as a line of `millrace enqueue`, an object or a bare payload: a job that the library
 * takes or refuses with words, nothing cut off, and what it took is JSON in one line. */
#include "../../cli/args.c"
#include "../../cli/enqueue_line.c"
#include "../../cli/json_line.c"
#include "../../cli/util.c"
#include "base/json.h"
#include "queue/draft.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void cli_say(const char *format, ...)
{
    (void)format;
}

static void check(mr_error *error)
{
    if (error != NULL && mr_error_message(error)[0] == '\0')
        __builtin_trap();
    mr_error_free(error);
}

/* What a draft holds is compact JSON, and as long as it says. */
static void check_json(const mr_job_draft *draft, mr_slice slice)
{
    if (slice.offset == MR_SLICE_NULL)
        return;
    mr_buf again = {0};
    const char *text = mr__job_draft_bytes(draft, slice);
    if (strlen(text) != slice.length || !mr__json_compact(&again, text, slice.length) ||
        again.length != slice.length)
        __builtin_trap();
    mr__buf_free(&again);
}

static void add(const enqueue_line *line)
{
    mr_job_draft *draft = mr_job_draft_new();
    mr_error *error = mr_job_draft_add(draft, line->payload);
    if (error != NULL) {
        if (mr_job_draft_count(draft) != 0 || draft->bytes.length != 0)
            __builtin_trap();
        check(error);
        mr_job_draft_free(draft);
        return;
    }
    for (int i = 0; i < ENQUEUE_FIELDS; i++)
        if (line->field[i] != NULL)
            check(mr_job_draft_field(draft, enqueue_field_names[i], line->field[i]));
    const mr_job_draft_row *row = &draft->rows[0];
    if (row->priority < -1 || row->priority > 9 || row->max_attempts < 0 ||
        row->text[MR_JOB_TEXT_KEY].length > MR_JOB_KEY_MAX)
        __builtin_trap();
    check_json(draft, row->text[MR_JOB_TEXT_PAYLOAD]);
    check_json(draft, row->text[MR_JOB_TEXT_METADATA]);
    mr_job_draft_free(draft);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    for (int bare = 0; bare < 2; bare++) {
        enqueue_line line;
        mr_error *error = enqueue_line_parse(text, size, bare != 0, &line);
        if (error == NULL)
            add(&line);
        check(error);
        enqueue_line_free(&line);
    }
    free(text);
    return 0;
}
