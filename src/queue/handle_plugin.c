/* Jobs handled by a function from a shared object. */
#include "handler/plugin.h"
#include "queue/job.h"

#include <stdlib.h>

typedef struct plugin_handler {
    mr_job_handler base;
    mr_plugin *plugin;
} plugin_handler;

static mr_error *handle(mr_job_handler *handler, mr_job *job)
{
    const mr_plugin *plugin = ((plugin_handler *)handler)->plugin;
    return plugin->on_job(job, plugin->user);
}

static void free_handler(mr_job_handler *handler)
{
    mr__plugin_close(((plugin_handler *)handler)->plugin);
    free(handler);
}

mr_error *mr__job_handler_plugin(const char *queue, const char *path, const char *config,
                                 mr_job_handler **out)
{
    static const char wanted[] = "mr_plugin_on_job()";
    plugin_handler *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return mr__error_nomem();
    h->base = (mr_job_handler){.handle = handle, .free = free_handler};
    mr_error *error = mr__plugin_open(queue, path, config, wanted, &h->plugin);
    if (error == NULL && h->plugin->on_job == NULL)
        error = mr__plugin_misfit(h->plugin, path, "queue", wanted);
    if (error != NULL) {
        free_handler(&h->base);
        return error;
    }
    *out = &h->base;
    return NULL;
}
