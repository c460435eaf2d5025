/* The queues of a configuration: making them, what can be checked without a database, and what
 * their options mean to src/queue. */
#include "runtime/conf_queue.h"

#include "base/list.h"
#include "base/text.h"
#include "queue/builtin.h"

#include <stdlib.h>
#include <string.h>

mr_queue *mr_queue_new(const char *name)
{
    mr_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL)
        return NULL;
    MR_AUTO_ERROR error = mr__bag_init(&queue->bag);
    if (error == NULL && name != NULL) {
        /* A bad name is reported when a conf takes the queue, where errors can be returned. */
        free(queue->bag.text[MR_OPT_Q_NAME]);
        queue->bag.text[MR_OPT_Q_NAME] = strdup(name);
    }
    if (error != NULL || queue->bag.text[MR_OPT_Q_NAME] == NULL) {
        mr_queue_free(queue);
        return NULL;
    }
    return queue;
}

void mr_queue_free(mr_queue *queue)
{
    if (queue == NULL)
        return;
    if (queue->user_free != NULL)
        queue->user_free(queue->user);
    mr__bag_free(&queue->bag);
    free(queue);
}

mr_error *mr_queue_set(mr_queue *queue, const char *name, const char *value)
{
    return mr__conf_set_in(&queue->bag, "queue", name, value);
}

void mr_queue_on_job(mr_queue *queue, mr_job_fn handler, void *user, void (*user_free)(void *))
{
    if (queue->user_free != NULL)
        queue->user_free(queue->user);
    queue->on_job = handler;
    queue->user = user;
    queue->user_free = user_free;
}

void mr_queue_on_handle(mr_queue *queue, mr_job_fn before, mr_job_after_fn after, void *user)
{
    queue->before = before;
    queue->after = after;
    queue->handle_user = user;
}

void mr_queue_on_dequeue(mr_queue *queue, mr_dequeue_fn hook, void *user)
{
    queue->on_dequeue = hook;
    queue->dequeue_user = user;
}

/* ---- What the options mean ------------------------------------------------------------------- */

static const char *text_of(const mr_queue *queue, mr_opt option)
{
    return mr__bag_text(&queue->bag, option);
}

static int64_t number_of(const mr_queue *queue, mr_opt option)
{
    return mr__bag_number(&queue->bag, option);
}

static bool has(const mr_queue *queue, mr_opt option)
{
    return text_of(queue, option)[0] != '\0';
}

static mr_error *map_columns(const char *map, mr_mapping *out)
{
    MR_AUTO_BUF key = {0};
    MR_AUTO_BUF value = {0};
    while (mr__list_next(&map, &key, &value))
        MR_TRY(mr__mapping_column(out, mr__buf_text(&key), mr__buf_text(&value)));
    return NULL;
}

/* A name without an expression is the view's column of that name. */
static mr_error *map_values(const char *map, mr_mapping *out)
{
    MR_AUTO_BUF key = {0};
    MR_AUTO_BUF value = {0};
    while (mr__list_next(&map, &key, &value)) {
        if (key.length == 0)
            return mr__error(MR_E_CONFIG, "values: a value needs a name: {total: amount + tax}");
        MR_TRY(mr__mapping_value(out, mr__buf_text(&key),
                                 value.length == 0 ? NULL : mr__buf_text(&value)));
    }
    return NULL;
}

bool mr__queue_builtin(const mr_queue *queue)
{
    return !has(queue, MR_OPT_Q_TABLE);
}

bool mr__queue_ordered(const mr_queue *queue)
{
    return strcmp(text_of(queue, MR_OPT_Q_ORDER), "none") != 0;
}

static mr_error *fill_mapping(const mr_queue *queue, const mr_names *names, mr_mapping *out)
{
    if (mr__queue_builtin(queue))
        return mr__builtin_mapping(names, out);
    MR_TRY(mr__mapping_table(out, text_of(queue, MR_OPT_Q_TABLE)));
    if (has(queue, MR_OPT_Q_VIEW))
        MR_TRY(mr__mapping_view(out, text_of(queue, MR_OPT_Q_VIEW)));
    MR_TRY(mr__mapping_order(out, text_of(queue, MR_OPT_Q_ORDER)));
    MR_TRY(mr__mapping_condition(out, text_of(queue, MR_OPT_Q_CONDITION)));
    MR_TRY(map_columns(text_of(queue, MR_OPT_Q_COLUMNS), out));
    return map_values(text_of(queue, MR_OPT_Q_VALUES), out);
}

mr_error *mr__queue_mapping_of(const mr_queue *queue, const mr_names *names, mr_mapping *out)
{
    mr_mapping mapping;
    MR_TRY(mr__mapping_init(&mapping, text_of(queue, MR_OPT_Q_NAME)));
    mr_error *error = fill_mapping(queue, names, &mapping);
    if (error != NULL) {
        mr__mapping_free(&mapping);
        return error;
    }
    *out = mapping;
    return NULL;
}

mr_queue_policy mr__queue_policy_of(const mr_queue *queue)
{
    mr_queue_policy policy = mr__queue_policy_default();
    policy.retry_after = number_of(queue, MR_OPT_Q_RETRY_AFTER);
    policy.max_retries = (int)number_of(queue, MR_OPT_Q_MAX_RETRIES);
    policy.stalled_max_age = number_of(queue, MR_OPT_Q_STALLED);
    policy.max_resets = (int)number_of(queue, MR_OPT_Q_MAX_RESETS);
    policy.reset_failure_message =
        has(queue, MR_OPT_Q_RESET_MESSAGE) ? text_of(queue, MR_OPT_Q_RESET_MESSAGE) : NULL;
    if (!mr__queue_builtin(queue))
        return policy;
    policy.builtin = true;
    policy.stalled_max_age = number_of(queue, MR_OPT_Q_LEASE);
    policy.retry_base = number_of(queue, MR_OPT_Q_RETRY_BASE);
    policy.retry_most = number_of(queue, MR_OPT_Q_RETRY_MOST);
    policy.max_running = number_of(queue, MR_OPT_Q_MAX_RUNNING);
    policy.hold = number_of(queue, MR_OPT_Q_LETTER_ORDER) == 1;
    policy.keep = number_of(queue, MR_OPT_Q_ARCHIVE) != 0;
    return policy;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static mr_error *check_name(const char *name)
{
    if (name[0] == '\0')
        return mr__error(MR_E_CONFIG, "a queue has no name; give it one: name: invoices");
    mr_bag probe = {0};
    mr_error *error = mr__bag_set(&probe, MR_OPT_Q_NAME, name);
    free(probe.text[MR_OPT_Q_NAME]);
    return mr__error_prefix(error, "queue '%.80s'", name);
}

static mr_error *check_handler(const mr_queue *queue, const char *name)
{
    int handlers = (queue->on_job != NULL) + has(queue, MR_OPT_Q_SQL) + has(queue, MR_OPT_Q_EXEC) +
                   has(queue, MR_OPT_Q_PLUGIN);
    if (handlers == 0)
        return mr__error(MR_E_CONFIG, "queue '%s' has no handler; give it sql, exec or plugin",
                         name);
    if (handlers > 1)
        return mr__error(MR_E_CONFIG, "queue '%s' has more than one handler; keep one", name);
    return NULL;
}

/* Options that would change nothing here, since they are of the other kind of queue. */
static mr_error *check_kind(const mr_queue *queue, const char *name)
{
    static const char leave[] = "leave table: out to use it";
    static const struct {
        mr_opt option;
        bool builtin; /* whose it is */
        const char *instead;
    } kinds[] = {
        {MR_OPT_Q_RETRY_AFTER, false, "the built-in one has retry_base_delay and retry_max_delay"},
        {MR_OPT_Q_STALLED, false, "the built-in one has claim_lease"},
        {MR_OPT_Q_RETRY_BASE, true, "one of your own has retry_after"},
        {MR_OPT_Q_RETRY_MOST, true, "one of your own has retry_after"},
        {MR_OPT_Q_LEASE, true, "one of your own has stalled_max_age"},
        {MR_OPT_Q_BATCH_SIZE, true, leave},
        {MR_OPT_Q_LETTER_ORDER, true, leave},
        {MR_OPT_Q_ARCHIVE, true, leave},
        {MR_OPT_Q_AFFINITY, true, leave}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].builtin != mr__queue_builtin(queue) &&
            mr__bag_given(&queue->bag, kinds[i].option))
            return mr__error(MR_E_CONFIG, "queue '%s': %s is for %s; %s", name,
                             mr_option_name(mr_option_at(kinds[i].option)),
                             kinds[i].builtin ? "the built-in table of jobs"
                                              : "a table of your own",
                             kinds[i].instead);
    return NULL;
}

/* Options that say where a table of the user's has what. */
static mr_error *check_builtin(const mr_queue *queue, const char *name)
{
    static const struct {
        mr_opt option;
        const char *name;
    } mapping[] = {{MR_OPT_Q_VIEW, "view"},
                   {MR_OPT_Q_COLUMNS, "columns"},
                   {MR_OPT_Q_VALUES, "values"},
                   {MR_OPT_Q_CONDITION, "condition"}};
    for (size_t i = 0; i < sizeof(mapping) / sizeof(mapping[0]); i++)
        if (has(queue, mapping[i].option))
            return mr__error(MR_E_CONFIG,
                             "queue '%s': %s is for a table of your own; name it with table:, or "
                             "leave %s out to use the built-in table of jobs",
                             name, mapping[i].name, mapping[i].name);
    const char *order = text_of(queue, MR_OPT_Q_ORDER);
    if (order[0] != '\0' && strcmp(order, "key") != 0 && strcmp(order, "none") != 0)
        return mr__error(MR_E_CONFIG,
                         "queue '%s': order is key or none in the built-in table of jobs, not "
                         "'%.80s'; for a table of your own name it with table:",
                         name, order);
    if (queue->on_dequeue != NULL && number_of(queue, MR_OPT_Q_MODE) == 1)
        return mr__error(MR_E_CONFIG, "queue '%s': mode transaction has no dequeue hook", name);
    if (number_of(queue, MR_OPT_Q_MODE) == 1 && number_of(queue, MR_OPT_Q_MAX_RUNNING) >= 0)
        return mr__error(MR_E_CONFIG,
                         "queue '%s': max_running needs mode: lease; what runs in a transaction "
                         "cannot be counted",
                         name);
    /* A third of it may have passed when a heartbeat leaves it alone, and the next comes after
     * another interval. */
    if (number_of(queue, MR_OPT_Q_LEASE) < 2 * number_of(queue, MR_OPT_Q_HEARTBEAT))
        return mr__error(
            MR_E_CONFIG,
            "queue '%s': with claim_lease %s and heartbeat_interval %s a job that runs "
            "well would be taken away; make claim_lease a few times "
            "heartbeat_interval",
            name, text_of(queue, MR_OPT_Q_LEASE), text_of(queue, MR_OPT_Q_HEARTBEAT));
    return NULL;
}

/* What does not go together. */
static mr_error *check_together(const mr_queue *queue, const char *name)
{
    MR_TRY(check_kind(queue, name));
    if (mr__queue_builtin(queue))
        return check_builtin(queue, name);
    if (number_of(queue, MR_OPT_Q_MODE) == 1 || number_of(queue, MR_OPT_Q_MAX_RUNNING) >= 0)
        return mr__error(MR_E_CONFIG,
                         "queue '%s': mode: transaction and max_running are for the built-in table "
                         "of jobs; leave table: out to use it",
                         name);
    if (number_of(queue, MR_OPT_Q_STALLED) <= number_of(queue, MR_OPT_Q_HEARTBEAT))
        return mr__error(MR_E_CONFIG,
                         "queue '%s': with stalled_max_age %s and heartbeat_interval %s a job that "
                         "runs well would be reset; make stalled_max_age a few times "
                         "heartbeat_interval",
                         name, text_of(queue, MR_OPT_Q_STALLED),
                         text_of(queue, MR_OPT_Q_HEARTBEAT));
    return NULL;
}

mr_error *mr__queue_validate(const mr_queue *queue)
{
    const char *name = text_of(queue, MR_OPT_Q_NAME);
    MR_TRY(check_name(name));
    MR_TRY(check_handler(queue, name));
    MR_TRY(check_together(queue, name));
    mr_mapping mapping = {0};
    mr_names names;
    MR_TRY(mr__names_init(&names, "millrace"));
    MR_TRY(mr__error_prefix(mr__queue_mapping_of(queue, &names, &mapping), "queue '%s'", name));
    mr__mapping_free(&mapping);
    return NULL;
}

/* ---- In a configuration ---------------------------------------------------------------------- */

mr_error *mr_conf_take_queue(mr_conf *conf, mr_queue *queue)
{
    const char *name = text_of(queue, MR_OPT_Q_NAME);
    mr_error *error = mr__queue_validate(queue);
    for (size_t i = 0; error == NULL && i < conf->queue_count; i++)
        if (strcmp(mr_conf_queue_name(conf, i), name) == 0)
            error =
                mr__error(MR_E_CONFIG, "queue '%s' is defined twice; names must be unique", name);
    mr_queue **grown = NULL;
    if (error == NULL) {
        grown = realloc(conf->queues, (conf->queue_count + 1) * sizeof(*grown));
        if (grown == NULL)
            error = mr__error_nomem();
    }
    if (error != NULL) {
        mr_queue_free(queue);
        return error;
    }
    conf->queues = grown;
    conf->queues[conf->queue_count++] = queue;
    return NULL;
}

size_t mr_conf_queue_count(const mr_conf *conf)
{
    return conf->queue_count;
}

const char *mr_conf_queue_name(const mr_conf *conf, size_t index)
{
    return index < conf->queue_count ? text_of(conf->queues[index], MR_OPT_Q_NAME) : NULL;
}

bool mr_conf_queue_builtin(const mr_conf *conf, size_t index)
{
    return index < conf->queue_count && mr__queue_builtin(conf->queues[index]);
}

static mr_error *no_such_queue(const mr_conf *conf, const char *name)
{
    if (conf->queue_count == 0)
        return mr__error(MR_E_USAGE,
                         "the configuration has no queue '%.80s', nor any other; add it under "
                         "'queues:'",
                         name);
    const char **names = calloc(conf->queue_count, sizeof(*names));
    if (names == NULL)
        return mr__error_nomem();
    for (size_t i = 0; i < conf->queue_count; i++)
        names[i] = mr_conf_queue_name(conf, i);
    int near = mr__text_nearest(name, names, conf->queue_count);
    mr_error *error =
        mr__error(MR_E_USAGE, "the configuration has no queue '%.80s'; %s '%s'%s", name,
                  near >= 0 ? "did you mean" : "it has", names[near >= 0 ? near : 0],
                  near >= 0               ? "?"
                  : conf->queue_count > 1 ? " and others"
                                          : "");
    free(names);
    return error;
}

mr_error *mr__conf_queue_find(const mr_conf *conf, const char *name, const mr_queue **out)
{
    if (conf == NULL)
        return mr__error(MR_E_USAGE, "this call needs a configuration that describes the queue");
    for (size_t i = 0; i < conf->queue_count; i++) {
        if (strcmp(mr_conf_queue_name(conf, i), name) == 0) {
            *out = conf->queues[i];
            return NULL;
        }
    }
    return no_such_queue(conf, name);
}
