/* A plugin for the tests: what it sets is what its configuration says. */
#include "millrace/millrace.h"

#include <stdlib.h>
#include <string.h>

mr_error *mr_plugin_v1(mr_plugin *plugin);

static mr_error *on_job(mr_job *job, void *user)
{
    const char *id = mr_job_value(job, "id");
    if ((id[strlen(id) - 1] - '0') % 2 == 0)
        return mr_error_new(MR_E_HANDLER, false, "%s wants odd ids", (const char *)user);
    mr_tx *tx = NULL;
    mr_error *error = mr_job_tx(job, &tx);
    return error != NULL ? error : mr_tx_exec(tx, "INSERT INTO effects VALUES ($1::int)", 1, &id);
}

static mr_error *on_event(mr_tx *tx, const mr_event *event, void *user)
{
    (void)tx;
    (void)event;
    (void)user;
    return NULL;
}

mr_error *mr_plugin_v1(mr_plugin *plugin)
{
    const char *config = mr_plugin_config(plugin);
    if (strcmp(config, "job") == 0 || strcmp(config, "twice") == 0)
        mr_plugin_on_job(plugin, on_job, strdup(mr_plugin_consumer(plugin)), free);
    if (strcmp(config, "event") == 0 || strcmp(config, "twice") == 0)
        mr_plugin_on_event(plugin, on_event, NULL, NULL);
    return NULL;
}
