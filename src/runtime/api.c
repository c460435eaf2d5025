/* Public calls that only translate a configuration for a lower room. */
#include "base/hash.h"
#include "cluster/schema.h"
#include "log/append.h"
#include "observe/health.h"
#include "observe/letters.h"
#include "observe/wait.h"
#include "runtime/api_queue.h"
#include "runtime/conf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static mr_error *schema_input(const mr_conf *conf, mr_names *names, mr_log_spec *spec,
                              mr_schema_input *input)
{
    MR_TRY(mr__conf_names(conf, names));
    MR_TRY(mr__conf_log_spec(conf, spec));
    *input = (mr_schema_input){
        .names = names, .log = spec, .no_log = mr__bag_number(&conf->bag, MR_OPT_NO_LOG) != 0};
    return NULL;
}

mr_error *mr_schema_apply(PGconn *conn, const mr_conf *conf, int *applied)
{
    mr_names names;
    mr_log_spec spec;
    mr_schema_input input;
    MR_TRY(schema_input(conf, &names, &spec, &input));
    return mr__schema_apply(conn, &input, applied);
}

mr_error *mr_schema_script(const mr_conf *conf, char **script)
{
    mr_names names;
    mr_log_spec spec;
    mr_schema_input input;
    MR_TRY(schema_input(conf, &names, &spec, &input));
    return mr__schema_script(&input, script);
}

mr_error *mr_schema_status(PGconn *conn, const mr_conf *conf, int *current, int *latest)
{
    mr_names names;
    mr_log_spec spec;
    mr_schema_input input;
    MR_TRY(schema_input(conf, &names, &spec, &input));
    return mr__schema_status(conn, &input, current, latest);
}

mr_error *mr_log_open(PGconn *conn, const mr_conf *conf, mr_log **log)
{
    mr_log_spec spec;
    MR_TRY(mr__conf_log_spec(conf, &spec));
    const char *schema = conf == NULL ? "millrace" : mr__bag_text(&conf->bag, MR_OPT_SCHEMA);
    return mr__log_open(conn, &spec, schema, log);
}

/* What the calls that look at the fleet have to know; `input` points into the other two. */
static mr_error *list_input(const mr_conf *conf, mr_names *names, mr_log_spec *spec,
                            mr_list_input *input)
{
    MR_TRY(mr__conf_names(conf, names));
    MR_TRY(mr__conf_log_spec(conf, spec));
    *input = (mr_list_input){
        .names = names,
        .log = spec,
        .heartbeat_timeout = mr__bag_number(&conf->bag, MR_OPT_HEARTBEAT_TIMEOUT),
        .leader_key = mr__bag_number(&conf->bag, MR_OPT_LEADER_KEY),
        .lag_threshold = mr__bag_number(&conf->bag, MR_OPT_LAG_THRESHOLD),
    };
    return NULL;
}

mr_error *mr_list(PGconn *conn, const mr_conf *conf, const char *what, PGresult **rows)
{
    mr_names names;
    mr_log_spec spec;
    mr_list_input input;
    MR_TRY(list_input(conf, &names, &spec, &input));
    if (strcmp(what, "queues") == 0)
        return mr__list_queues(conn, conf, &input, rows);
    return mr__list_rows(conn, &input, what, rows);
}

mr_error *mr_health(PGconn *conn, const mr_conf *conf, char **json)
{
    mr_names names;
    mr_log_spec spec;
    mr_list_input input;
    MR_TRY(list_input(conf, &names, &spec, &input));
    return mr__health(conn, &input, json);
}

mr_error *mr_consumer_wait(PGconn *conn, const mr_conf *conf, const char *name, int64_t position,
                           int64_t timeout_ms)
{
    mr_names names;
    mr_log_spec spec;
    mr_list_input input;
    MR_TRY(list_input(conf, &names, &spec, &input));
    return mr__consumer_wait(conn, &input, name, position, timeout_ms);
}

int mr_partition_of(const char *aggregate_type, const char *aggregate_id, int partitions)
{
    if (partitions < 2)
        return 0;
    return (int)(mr__hash_stream(aggregate_type, aggregate_id) % (uint32_t)partitions);
}

/* ---- Operating ----------------------------------------------------------------------------- */

typedef struct operating {
    mr_names names;
    mr_log_spec spec;
    mr_operate_input input;
} operating;

static mr_error *operating_init(const mr_conf *conf, operating *o)
{
    MR_TRY(mr__conf_names(conf, &o->names));
    MR_TRY(mr__conf_log_spec(conf, &o->spec));
    o->input = (mr_operate_input){
        .names = &o->names,
        .log = &o->spec,
        .heartbeat_timeout = mr__bag_number(&conf->bag, MR_OPT_HEARTBEAT_TIMEOUT),
    };
    return NULL;
}

mr_error *mr_consumer_control(PGconn *conn, const mr_conf *conf, const char *name,
                              const char *action, const char *argument, const char *actor,
                              const char *reason, PGresult **rows)
{
    operating o;
    MR_TRY(operating_init(conf, &o));
    mr_order order = {
        .action = action, .name = name, .argument = argument, .actor = actor, .reason = reason};
    return mr__operate(conn, &o.input, &order, rows);
}

mr_error *mr_consumer_pause(PGconn *conn, const mr_conf *conf, const char *name, const char *actor,
                            const char *reason)
{
    return mr_consumer_control(conn, conf, name, "pause", NULL, actor, reason, NULL);
}

mr_error *mr_consumer_resume(PGconn *conn, const mr_conf *conf, const char *name, const char *actor,
                             const char *reason)
{
    return mr_consumer_control(conn, conf, name, "resume", NULL, actor, reason, NULL);
}

mr_error *mr_consumer_reset(PGconn *conn, const mr_conf *conf, const char *name, const char *to,
                            const char *actor, const char *reason, int64_t *position)
{
    operating o;
    MR_TRY(operating_init(conf, &o));
    int64_t target = 0;
    mr_order order = {.action = "reset",
                      .name = name,
                      .argument = to,
                      .actor = actor,
                      .reason = reason,
                      .position = &target};
    MR_TRY(mr__operate(conn, &o.input, &order, NULL));
    if (position != NULL)
        *position = target;
    return NULL;
}

mr_error *mr_consumer_skip(PGconn *conn, const mr_conf *conf, const char *name, int64_t position,
                           const char *actor, const char *reason)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRId64, position);
    return mr_consumer_control(conn, conf, name, "skip", text, actor, reason, NULL);
}

mr_error *mr_letters_list(PGconn *conn, const mr_conf *conf, const mr_letters *letters, bool whole,
                          PGresult **rows)
{
    operating o;
    MR_TRY(operating_init(conf, &o));
    return mr__letters_list(conn, &o.input, letters, whole, rows);
}

mr_error *mr_letters_replay(PGconn *conn, const mr_conf *conf, const mr_letters *letters, bool all,
                            const char *actor, int64_t timeout_ms, int64_t *replayed,
                            int64_t *failed)
{
    operating o;
    MR_TRY(operating_init(conf, &o));
    mr_replay_order replay = {.actor = actor, .timeout_ms = timeout_ms};
    MR_TRY(mr__letters_replay(conn, &o.input, letters, all, &replay));
    if (replayed != NULL)
        *replayed = replay.replayed;
    if (failed != NULL)
        *failed = replay.failed;
    return NULL;
}

mr_error *mr_letters_drop(PGconn *conn, const mr_conf *conf, const mr_letters *letters, bool all,
                          const char *actor, const char *reason, int64_t *dropped)
{
    operating o;
    MR_TRY(operating_init(conf, &o));
    return mr__letters_drop(conn, &o.input, letters, all, actor, reason, dropped);
}
