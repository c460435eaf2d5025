/* What a worker is made from: the options set so far and the consumers. Queues are in
 * conf_queue.c. */
#include "runtime/conf.h"

#include "base/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mr_conf *mr_conf_new(void)
{
    mr_conf *conf = calloc(1, sizeof(*conf));
    if (conf == NULL)
        return NULL;
    MR_AUTO_ERROR error = mr__bag_init(&conf->bag);
    if (error != NULL) {
        free(conf);
        return NULL;
    }
    return conf;
}

void mr_conf_free(mr_conf *conf)
{
    if (conf == NULL)
        return;
    for (size_t i = 0; i < conf->consumer_count; i++)
        mr_consumer_free(conf->consumers[i]);
    free(conf->consumers);
    for (size_t i = 0; i < conf->queue_count; i++)
        mr_queue_free(conf->queues[i]);
    free(conf->queues);
    mr__bag_free(&conf->bag);
    free(conf);
}

mr_error *mr__conf_set_in(mr_bag *bag, const char *section, const char *name, const char *value)
{
    int option = mr__option_find(section, name);
    if (option < 0)
        return mr__option_unknown(section, name);
    return mr__bag_set(bag, (mr_opt)option, value);
}

/* "log.table" is an option of a section; a bare name is the worker's or the file's own. */
static int find_dotted(const char *name)
{
    if (strncmp(name, "log.", 4) == 0)
        return mr__option_find("log", name + 4);
    int option = mr__option_find("", name);
    return option >= 0 ? option : mr__option_find("worker", name);
}

mr_error *mr_conf_set(mr_conf *conf, const char *name, const char *value)
{
    int option = find_dotted(name);
    if (option < 0)
        return strncmp(name, "log.", 4) == 0 ? mr__option_unknown("log", name + 4)
                                             : mr__option_unknown("worker", name);
    return mr__bag_set(&conf->bag, (mr_opt)option, value);
}

const char *mr_conf_get(const mr_conf *conf, const char *name)
{
    int option = find_dotted(name);
    return option < 0 ? NULL : mr__bag_text(&conf->bag, (mr_opt)option);
}

void mr_conf_on_log(mr_conf *conf, mr_log_fn sink, void *user)
{
    conf->sink = sink;
    conf->sink_user = user;
}

void mr_conf_on_lag(mr_conf *conf, mr_lag_fn callback, void *user)
{
    conf->on_lag = callback;
    conf->on_lag_user = user;
}

mr_error *mr_conf_take_consumer(mr_conf *conf, mr_consumer *consumer)
{
    const char *name = mr__bag_text(&consumer->bag, MR_OPT_C_NAME);
    mr_error *error = mr__consumer_validate(consumer);
    for (size_t i = 0; error == NULL && i < conf->consumer_count; i++)
        if (strcmp(mr_conf_consumer_name(conf, i), name) == 0)
            error = mr__error(MR_E_CONFIG, "consumer '%s' is defined twice; names must be unique",
                              name);
    mr_consumer **grown = NULL;
    if (error == NULL) {
        grown = realloc(conf->consumers, (conf->consumer_count + 1) * sizeof(*grown));
        if (grown == NULL)
            error = mr__error_nomem();
    }
    if (error != NULL) {
        mr_consumer_free(consumer);
        return error;
    }
    conf->consumers = grown;
    conf->consumers[conf->consumer_count++] = consumer;
    return NULL;
}

size_t mr_conf_consumer_count(const mr_conf *conf)
{
    return conf->consumer_count;
}

const char *mr_conf_consumer_name(const mr_conf *conf, size_t index)
{
    return index < conf->consumer_count ? mr__bag_text(&conf->consumers[index]->bag, MR_OPT_C_NAME)
                                        : NULL;
}

int64_t mr__conf_number(const mr_conf *conf, const mr_consumer *consumer, mr_opt own, mr_opt worker)
{
    bool inherits = strcmp(mr__bag_text(&consumer->bag, own), MR_INHERITED) == 0;
    return inherits ? mr__bag_number(&conf->bag, worker) : mr__bag_number(&consumer->bag, own);
}

mr_error *mr__conf_names(const mr_conf *conf, mr_names *names)
{
    static const mr_opt options[MR_TABLE_COUNT] = {
        [MR_TABLE_WORKER_NODES] = MR_OPT_T_WORKER_NODES,
        [MR_TABLE_ASSIGNMENTS] = MR_OPT_T_ASSIGNMENTS,
        [MR_TABLE_CHECKPOINTS] = MR_OPT_T_CHECKPOINTS,
        [MR_TABLE_GAP_SKIPS] = MR_OPT_T_GAP_SKIPS,
        [MR_TABLE_DEAD_LETTERS] = MR_OPT_T_DEAD_LETTERS,
        [MR_TABLE_CONTROLS] = MR_OPT_T_CONTROLS,
        [MR_TABLE_AUDIT] = MR_OPT_T_AUDIT,
        [MR_TABLE_LEADER] = MR_OPT_T_LEADER,
        [MR_TABLE_PUBLISHED] = MR_OPT_T_PUBLISHED,
        [MR_TABLE_JOBS] = MR_OPT_T_JOBS,
        [MR_TABLE_JOB_CLAIMS] = MR_OPT_T_JOB_CLAIMS,
        [MR_TABLE_JOBS_ARCHIVE] = MR_OPT_T_JOBS_ARCHIVE,
        [MR_TABLE_JOB_IDEMPOTENCY] = MR_OPT_T_JOB_IDEMPOTENCY,
        [MR_TABLE_JOB_SETTINGS] = MR_OPT_T_JOB_SETTINGS,
        [MR_TABLE_QUEUE_CONTROLS] = MR_OPT_T_QUEUE_CONTROLS,
        [MR_TABLE_QUEUE_AUDIT] = MR_OPT_T_QUEUE_AUDIT,
        [MR_TABLE_MIGRATIONS] = MR_OPT_T_MIGRATIONS,
    };
    if (conf == NULL)
        return mr__error(MR_E_USAGE,
                         "this call needs a configuration; mr_conf_new() has the defaults");
    MR_TRY(mr__names_init(names, mr__bag_text(&conf->bag, MR_OPT_SCHEMA)));
    for (int i = 0; i < MR_TABLE_COUNT; i++)
        MR_TRY(mr__names_set(names, (mr_table)i, mr__bag_text(&conf->bag, options[i])));
    return NULL;
}

static mr_error *read_columns(const char *map, mr_log_spec *spec)
{
    MR_AUTO_BUF key = {0};
    MR_AUTO_BUF value = {0};
    while (mr__list_next(&map, &key, &value)) {
        int column = mr__log_column_find(mr__buf_text(&key));
        if (column < 0)
            return mr__error(MR_E_CONFIG, "log.columns: Millrace has no column '%s'",
                             mr__buf_text(&key));
        if (value.length == 0 || value.length > MR_IDENT_MAX)
            return mr__error(MR_E_CONFIG, "log.columns: the name for '%s' must have 1 to 63 bytes",
                             mr__buf_text(&key));
        (void)snprintf(spec->column[column], sizeof(spec->column[column]), "%s", value.data);
    }
    return NULL;
}

mr_error *mr__conf_log_spec(const mr_conf *conf, mr_log_spec *spec)
{
    mr__log_spec_init(spec);
    if (conf == NULL)
        return NULL;
    MR_TRY(mr__qname_parse(mr__bag_text(&conf->bag, MR_OPT_LOG_TABLE), "log.table", &spec->table));
    const char *heads = mr__bag_text(&conf->bag, MR_OPT_LOG_HEADS);
    if (heads[0] != '\0')
        MR_TRY(mr__qname_parse(heads, "log.heads_table", &spec->heads));
    spec->naming = (mr_naming)mr__bag_number(&conf->bag, MR_OPT_LOG_NAMING);
    return read_columns(mr__bag_text(&conf->bag, MR_OPT_LOG_COLUMNS), spec);
}

mr_consumer *mr_consumer_new(const char *name)
{
    mr_consumer *consumer = calloc(1, sizeof(*consumer));
    if (consumer == NULL)
        return NULL;
    MR_AUTO_ERROR error = mr__bag_init(&consumer->bag);
    if (error == NULL && name != NULL) {
        /* A bad name is reported when a conf takes the consumer, where errors can be returned. */
        free(consumer->bag.text[MR_OPT_C_NAME]);
        consumer->bag.text[MR_OPT_C_NAME] = strdup(name);
    }
    if (error != NULL || consumer->bag.text[MR_OPT_C_NAME] == NULL) {
        mr_consumer_free(consumer);
        return NULL;
    }
    return consumer;
}

void mr_consumer_free(mr_consumer *consumer)
{
    if (consumer == NULL)
        return;
    if (consumer->user_free != NULL)
        consumer->user_free(consumer->user);
    mr__bag_free(&consumer->bag);
    free(consumer);
}

mr_error *mr_consumer_set(mr_consumer *consumer, const char *name, const char *value)
{
    return mr__conf_set_in(&consumer->bag, "consumer", name, value);
}

static void set_handler(mr_consumer *consumer, mr_event_fn on_event, mr_batch_fn on_batch,
                        void *user, void (*user_free)(void *))
{
    if (consumer->user_free != NULL)
        consumer->user_free(consumer->user);
    consumer->on_event = on_event;
    consumer->on_batch = on_batch;
    consumer->user = user;
    consumer->user_free = user_free;
}

void mr_consumer_on_event(mr_consumer *consumer, mr_event_fn handler, void *user,
                          void (*user_free)(void *))
{
    set_handler(consumer, handler, NULL, user, user_free);
}

void mr_consumer_on_batch(mr_consumer *consumer, mr_batch_fn handler, void *user,
                          void (*user_free)(void *))
{
    set_handler(consumer, NULL, handler, user, user_free);
}

void mr_consumer_on_dead_letter(mr_consumer *consumer, mr_dead_letter_fn callback, void *user)
{
    consumer->on_dead_letter = callback;
    consumer->on_dead_letter_user = user;
}

void mr_consumer_on_setup(mr_consumer *consumer, mr_setup_fn callback, void *user)
{
    consumer->on_setup = callback;
    consumer->on_setup_user = user;
}

/* "#3/8" at the end is how slots of partitioned consumers are called. */
static bool looks_like_slot(const char *name)
{
    const char *mark = strrchr(name, '#');
    if (mark == NULL)
        return false;
    size_t slot = strspn(mark + 1, "0123456789");
    const char *slash = mark + 1 + slot;
    return slot > 0 && *slash == '/' && slash[1] != '\0' &&
           slash[1 + strspn(slash + 1, "0123456789")] == '\0';
}

static bool has(const mr_consumer *consumer, mr_opt option)
{
    return mr__bag_text(&consumer->bag, option)[0] != '\0';
}

/* What does not go together. */
static mr_error *check_together(const mr_consumer *c, const char *name)
{
    bool sql = has(c, MR_OPT_C_SQL) || has(c, MR_OPT_C_SQL_BATCH);
    if (mr__bag_number(&c->bag, MR_OPT_C_DETACHED) != 0 && sql)
        return mr__error(MR_E_CONFIG,
                         "consumer '%s' is detached, which means effects outside the database; sql "
                         "and sql_batch write to it: leave detached out, or use exec or plugin",
                         name);
    if (looks_like_slot(name))
        return mr__error(MR_E_CONFIG,
                         "consumer '%s': a name cannot end like a slot of a partitioned consumer "
                         "(#%s); choose another",
                         name, strrchr(name, '#') + 1);
    return NULL;
}

mr_error *mr__consumer_validate(const mr_consumer *consumer)
{
    const char *name = mr__bag_text(&consumer->bag, MR_OPT_C_NAME);
    if (name[0] == '\0')
        return mr__error(MR_E_CONFIG, "a consumer has no name; give it one: name: order_totals");
    mr_bag probe = {0};
    mr_error *error = mr__bag_set(&probe, MR_OPT_C_NAME, name);
    free(probe.text[MR_OPT_C_NAME]);
    MR_TRY(mr__error_prefix(error, "consumer '%.80s'", name));
    int handlers = (consumer->on_event != NULL) + (consumer->on_batch != NULL) +
                   has(consumer, MR_OPT_C_SQL) + has(consumer, MR_OPT_C_SQL_BATCH) +
                   has(consumer, MR_OPT_C_EXEC) + has(consumer, MR_OPT_C_PLUGIN);
    if (handlers == 0)
        return mr__error(MR_E_CONFIG,
                         "consumer '%s' has no handler; give it sql, sql_batch, exec or plugin",
                         name);
    if (handlers > 1)
        return mr__error(MR_E_CONFIG, "consumer '%s' has more than one handler; keep one", name);
    return check_together(consumer, name);
}
