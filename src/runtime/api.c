/* Public calls that only translate a configuration for a lower room. */
#include "cluster/schema.h"
#include "log/append.h"
#include "observe/listing.h"
#include "runtime/conf.h"

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

mr_error *mr_list(PGconn *conn, const mr_conf *conf, const char *what, PGresult **rows)
{
    mr_names names;
    mr_log_spec spec;
    MR_TRY(mr__conf_names(conf, &names));
    MR_TRY(mr__conf_log_spec(conf, &spec));
    mr_list_input input = {
        .names = &names,
        .log = &spec,
        .heartbeat_timeout = mr__bag_number(&conf->bag, MR_OPT_HEARTBEAT_TIMEOUT),
        .leader_key = mr__bag_number(&conf->bag, MR_OPT_LEADER_KEY),
    };
    return mr__list_rows(conn, &input, what, rows);
}
