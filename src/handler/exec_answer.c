/* A child's line as an answer. Pure. */
#include "handler/exec_line.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* The values of a line's known keys; text NULL = absent, or null. */
typedef struct fields {
    mr_json ok, error, retry, fatal, position, sql, log, level;
    mr_json id, snooze, requeue, entry, progress, text; /* a job's */
} fields;

static mr_error *wrong(const char *why)
{
    return mr__error(MR_E_PARSE, "%s", why);
}

static mr_error *text_of(mr_json value, const char *what, char **text)
{
    if (value.text[0] != '"')
        return mr__error(MR_E_PARSE, "%s is not a string", what);
    MR_AUTO_BUF out = {0};
    if (!mr__json_unquote(value, &out))
        return mr__error(MR_E_PARSE, "%s holds \\u0000 or half of a surrogate pair", what);
    *text = mr__buf_take(&out);
    return *text == NULL ? mr__error_nomem() : NULL;
}

/* A value as text: a string's own, anything else as it was written. */
static mr_error *plain_of(mr_json value, const char *what, char **text)
{
    if (value.text[0] == '"')
        return text_of(value, what, text);
    *text = strndup(value.text, value.length);
    return *text == NULL ? mr__error_nomem() : NULL;
}

static mr_error *flag_of(mr_json value, const char *what, bool *flag)
{
    if (value.text == NULL)
        return NULL;
    *flag = mr__json_is(value, "true");
    if (!*flag && !mr__json_is(value, "false"))
        return mr__error(MR_E_PARSE, "\"%s\" is neither true nor false", what);
    return NULL;
}

/* Where a key's value goes; NULL for one that means nothing to us. */
static mr_json *field_of(fields *f, const char *key)
{
    const struct {
        const char *name;
        mr_json *field;
    } known[] = {{"ok", &f->ok},
                 {"error", &f->error},
                 {"retry", &f->retry},
                 {"fatal", &f->fatal},
                 {"position", &f->position},
                 {"sql", &f->sql},
                 {"log", &f->log},
                 {"level", &f->level},
                 {"id", &f->id},
                 {"snooze", &f->snooze},
                 {"requeue", &f->requeue},
                 {"entry", &f->entry},
                 {"progress", &f->progress},
                 {"text", &f->text}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, key) == 0)
            return known[i].field;
    return NULL;
}

static void take_fields(mr_json object, fields *f)
{
    *f = (fields){0};
    mr_json key, value;
    MR_AUTO_BUF name = {0};
    for (const char *cursor = NULL; mr__json_next(object, &cursor, &key, &value);) {
        mr__buf_clear(&name);
        mr_json *field = mr__json_unquote(key, &name) ? field_of(f, mr__buf_text(&name)) : NULL;
        if (field == NULL)
            continue;
        *field = value;
        if (mr__json_is(value, "null"))
            field->text = NULL;
    }
}

static size_t count_items(mr_json array)
{
    size_t count = 0;
    mr_json item;
    for (const char *cursor = NULL; mr__json_next(array, &cursor, NULL, &item);)
        count++;
    return count;
}

/* A parameter as the server's text format has it: strings as they are, everything else as it was
 * written, so that a number keeps every digit. */
static mr_error *take_param(mr_json value, char **out)
{
    if (mr__json_is(value, "null"))
        return NULL;
    return plain_of(value, "a parameter in \"sql\"", out);
}

static mr_error *take_params(mr_json array, mr_exec_sql *sql)
{
    if (array.text == NULL || mr__json_is(array, "null"))
        return NULL;
    if (array.text[0] != '[')
        return wrong("\"params\" in \"sql\" is not a list");
    size_t count = count_items(array);
    if (count > MR_EXEC_PARAMS)
        return wrong("a statement in \"sql\" has more than 65535 parameters");
    sql->params = calloc(count + 1, sizeof(*sql->params));
    if (sql->params == NULL)
        return mr__error_nomem();
    sql->count = (int)count;
    mr_json item;
    const char *cursor = NULL;
    for (size_t i = 0; mr__json_next(array, &cursor, NULL, &item); i++)
        MR_TRY(take_param(item, &sql->params[i]));
    return NULL;
}

static mr_error *take_statement(mr_json object, mr_exec_sql *sql)
{
    if (object.text[0] != '{')
        return wrong("\"sql\" is not a list of objects with \"text\"");
    mr_json key, value, params = {0};
    for (const char *cursor = NULL; mr__json_next(object, &cursor, &key, &value);) {
        if (mr__json_is(key, "\"params\""))
            params = value;
        if (!mr__json_is(key, "\"text\""))
            continue;
        free(sql->text); /* the last of two counts, as with every reader */
        sql->text = NULL;
        MR_TRY(text_of(value, "\"text\" in \"sql\"", &sql->text));
    }
    if (sql->text == NULL)
        return wrong("a statement in \"sql\" has no \"text\"");
    return take_params(params, sql);
}

static mr_error *take_sql(mr_json list, mr_exec_answer *answer)
{
    if (list.text == NULL)
        return NULL;
    if (list.text[0] != '[')
        return wrong("\"sql\" is not a list of objects with \"text\"");
    size_t count = count_items(list);
    if (count == 0)
        return NULL;
    answer->sql = calloc(count, sizeof(*answer->sql));
    if (answer->sql == NULL)
        return mr__error_nomem();
    mr_json item;
    for (const char *cursor = NULL; mr__json_next(list, &cursor, NULL, &item);)
        MR_TRY(take_statement(item, &answer->sql[answer->sql_count++]));
    return NULL;
}

static mr_error *take_position(mr_json value, mr_exec_answer *answer)
{
    if (value.text == NULL)
        return NULL;
    char digits[24] = "";
    if (value.length < sizeof(digits))
        memcpy(digits, value.text, value.length);
    if (!mr__text_int(digits, &answer->position))
        return wrong("\"position\" is not a whole number");
    answer->placed = true;
    return NULL;
}

/* A text that somebody will read: not without end. */
static void shorten(char *text)
{
    text[mr__text_cut(text, MR_EXEC_ERROR_TEXT)] = '\0';
}

static mr_error *take_error(const fields *f, mr_exec_answer *answer)
{
    answer->kind = MR_EXEC_ERROR;
    answer->retry = true;
    MR_TRY(plain_of(f->error, "\"error\"", &answer->text));
    shorten(answer->text);
    MR_TRY(flag_of(f->retry, "retry", &answer->retry));
    MR_TRY(flag_of(f->fatal, "fatal", &answer->fatal));
    answer->retry = answer->retry && !answer->fatal;
    return NULL;
}

static mr_error *take_log(const fields *f, mr_exec_answer *answer)
{
    static const char *const names[] = {"\"debug\"", "\"info\"", "\"warn\"", "\"error\""};
    answer->kind = MR_EXEC_LOG;
    answer->level = MR_INFO;
    for (int i = 0; f->level.text != NULL && i < 4; i++)
        if (mr__json_is(f->level, names[i]))
            answer->level = (mr_level)i;
    MR_TRY(text_of(f->log, "\"log\"", &answer->text));
    shorten(answer->text);
    return NULL;
}

static mr_error *take_answer(const fields *f, mr_exec_answer *answer)
{
    bool ok = f->ok.text != NULL && mr__json_is(f->ok, "true");
    if (f->log.text != NULL && f->ok.text == NULL && f->error.text == NULL)
        return take_log(f, answer);
    if (f->log.text != NULL)
        return wrong("\"log\" stands on a line of its own, not in an answer");
    MR_TRY(take_position(f->position, answer));
    if (ok && f->error.text != NULL)
        return wrong("it says both \"ok\" and \"error\"");
    if (f->error.text != NULL)
        return take_error(f, answer);
    if (!ok)
        return wrong("it has neither \"ok\":true nor \"error\"");
    answer->kind = MR_EXEC_OK;
    return take_sql(f->sql, answer);
}

/* ---- What only jobs have ------------------------------------------------------------------- */

static mr_error *take_delay(mr_json value, const char *what, mr_exec_answer *answer)
{
    char *text = NULL;
    MR_TRY(plain_of(value, what, &text));
    bool good = mr__text_duration(text, &answer->delay);
    free(text);
    if (good)
        return NULL;
    return mr__error(MR_E_PARSE, "%s is no duration such as \"250ms\", \"10s\", \"5m\" or \"1h\"",
                     what);
}

static mr_error *take_entry(mr_json value, mr_exec_answer *answer)
{
    if (value.text == NULL)
        return NULL;
    if (value.text[0] != '{')
        return wrong("\"entry\" is not an object");
    answer->entry = strndup(value.text, value.length);
    return answer->entry == NULL ? mr__error_nomem() : NULL;
}

static mr_error *take_back(const fields *f, mr_exec_answer *answer)
{
    if (f->log.text != NULL)
        return wrong("\"log\" stands on a line of its own, not in an answer");
    if (f->error.text != NULL || (f->snooze.text != NULL && f->requeue.text != NULL))
        return wrong("it says more than one of \"error\", \"snooze\" and \"requeue\"");
    bool snooze = f->snooze.text != NULL;
    answer->kind = snooze ? MR_EXEC_SNOOZE : MR_EXEC_REQUEUE;
    MR_TRY(snooze ? take_delay(f->snooze, "\"snooze\"", answer)
                  : take_delay(f->requeue, "\"requeue\"", answer));
    return take_sql(f->sql, answer);
}

/* A line of its own, as "log" is. A fraction is as good as a whole number. */
static mr_error *take_progress(const fields *f, mr_exec_answer *answer)
{
    char digits[32] = "";
    if (f->ok.text != NULL || f->error.text != NULL || f->log.text != NULL ||
        f->snooze.text != NULL || f->requeue.text != NULL)
        return wrong("\"progress\" stands on a line of its own, not in an answer");
    if (f->progress.length < sizeof(digits))
        memcpy(digits, f->progress.text, f->progress.length);
    char *end = digits;
    double percent = strtod(digits, &end);
    if (end == digits || *end != '\0' || !(percent >= 0 && percent <= 100))
        return wrong("\"progress\" is not a number from 0 to 100");
    answer->kind = MR_EXEC_PROGRESS;
    answer->percent = (int)percent;
    if (f->text.text == NULL)
        return NULL;
    MR_TRY(text_of(f->text, "\"text\"", &answer->text));
    shorten(answer->text);
    return NULL;
}

static mr_error *take_job_answer(const fields *f, mr_exec_answer *answer)
{
    if (f->progress.text != NULL)
        return take_progress(f, answer);
    bool back = f->snooze.text != NULL || f->requeue.text != NULL;
    MR_TRY(back ? take_back(f, answer) : take_answer(f, answer));
    if (answer->kind == MR_EXEC_LOG)
        return take_entry(f->entry, answer);
    return f->id.text == NULL ? NULL : plain_of(f->id, "\"id\"", &answer->id);
}

/* ---- The line ------------------------------------------------------------------------------ */

static mr_error *parse(const char *line, size_t length,
                       mr_error *(*take)(const fields *f, mr_exec_answer *answer),
                       mr_exec_answer *answer)
{
    static const char plain[] = "{\"ok\":true}";
    *answer = (mr_exec_answer){.kind = MR_EXEC_OK};
    if (length == sizeof(plain) - 1 && memcmp(line, plain, length) == 0)
        return NULL;
    MR_AUTO_BUF compact = {0};
    bool valid = mr__json_compact(&compact, line, length);
    if (compact.failed)
        return mr__error_nomem();
    if (!valid || compact.data[0] != '{')
        return wrong(valid ? "it is not a JSON object" : "it is not JSON");
    fields f;
    take_fields((mr_json){.text = compact.data, .length = compact.length}, &f);
    mr_error *error = take(&f, answer);
    if (error != NULL)
        mr__exec_answer_free(answer);
    return error;
}

mr_error *mr__exec_line_answer(const char *line, size_t length, mr_exec_answer *answer)
{
    return parse(line, length, take_answer, answer);
}

mr_error *mr__exec_line_job_answer(const char *line, size_t length, mr_exec_answer *answer)
{
    return parse(line, length, take_job_answer, answer);
}

void mr__exec_answer_free(mr_exec_answer *answer)
{
    for (size_t i = 0; i < answer->sql_count; i++) {
        mr_exec_sql *sql = &answer->sql[i];
        for (int k = 0; k < sql->count; k++)
            free(sql->params[k]);
        free(sql->params);
        free(sql->text);
    }
    free(answer->sql);
    free(answer->text);
    free(answer->entry);
    free(answer->id);
    *answer = (mr_exec_answer){0};
}
