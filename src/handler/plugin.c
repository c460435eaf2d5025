/* Handlers from a shared object: its entry sets C callbacks, which then run as any others. */
#include "handler/plugin.h"

#include "handler/handler.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef mr_error *(*entry_fn)(mr_plugin *plugin);

/* ---- What the entry calls ------------------------------------------------------------------ */

const char *mr_plugin_consumer(const mr_plugin *plugin)
{
    return plugin->owner;
}

const char *mr_plugin_config(const mr_plugin *plugin)
{
    return plugin->config;
}

static void drop_user(mr_plugin *plugin)
{
    if (plugin->user_free != NULL)
        plugin->user_free(plugin->user);
    plugin->user_free = NULL;
}

static void set(mr_plugin *plugin, void *user, void (*user_free)(void *))
{
    drop_user(plugin);
    plugin->on_event = NULL;
    plugin->on_batch = NULL;
    plugin->on_job = NULL;
    plugin->user = user;
    plugin->user_free = user_free;
    plugin->handlers++;
}

void mr_plugin_on_event(mr_plugin *plugin, mr_event_fn handler, void *user,
                        void (*user_free)(void *))
{
    set(plugin, user, user_free);
    plugin->on_event = handler;
}

void mr_plugin_on_batch(mr_plugin *plugin, mr_batch_fn handler, void *user,
                        void (*user_free)(void *))
{
    set(plugin, user, user_free);
    plugin->on_batch = handler;
}

void mr_plugin_on_job(mr_plugin *plugin, mr_job_fn handler, void *user, void (*user_free)(void *))
{
    set(plugin, user, user_free);
    plugin->on_job = handler;
}

/* ---- Loading ------------------------------------------------------------------------------- */

/* A bare name means a file here, as for every other path in a configuration, before dlopen's own
 * directories. */
static void *load(const char *path)
{
    MR_AUTO_BUF here = {0};
    if (strchr(path, '/') == NULL && access(path, F_OK) == 0) {
        mr__buf_printf(&here, "./%s", path);
        path = mr__buf_text(&here);
    }
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static const char *reason(void)
{
    const char *text = dlerror();
    return text == NULL ? "unknown reason" : text;
}

static mr_error *call_entry(mr_plugin *plugin, entry_fn entry, const char *wanted)
{
    MR_TRY(entry(plugin));
    if (plugin->handlers == 0)
        return mr__error(MR_E_CONFIG, "%s set no handler; it must call %s", MR_PLUGIN_ENTRY,
                         wanted);
    if (plugin->handlers > 1)
        return mr__error(MR_E_CONFIG, "%s set a handler %d times; it can have one", MR_PLUGIN_ENTRY,
                         plugin->handlers);
    if (plugin->on_event == NULL && plugin->on_batch == NULL && plugin->on_job == NULL)
        return mr__error(MR_E_CONFIG, "%s set NULL as its handler", MR_PLUGIN_ENTRY);
    return NULL;
}

static mr_error *open_library(mr_plugin *plugin, const char *path, const char *wanted)
{
    plugin->library = load(path);
    if (plugin->library == NULL)
        return mr__error(MR_E_CONFIG, "cannot be loaded: %s", reason());
    void *symbol = dlsym(plugin->library, MR_PLUGIN_ENTRY);
    if (symbol == NULL)
        return mr__error(MR_E_CONFIG, "has no function %s, so it is no plugin for this Millrace",
                         MR_PLUGIN_ENTRY);
    entry_fn entry;
    memcpy(&entry, &symbol, sizeof(entry)); /* C has no cast from an object to a function */
    return call_entry(plugin, entry, wanted);
}

mr_error *mr__plugin_open(const char *owner, const char *path, const char *config,
                          const char *wanted, mr_plugin **out)
{
    mr_plugin *plugin = calloc(1, sizeof(*plugin));
    if (plugin == NULL)
        return mr__error_nomem();
    plugin->owner = strdup(owner);
    plugin->config = strdup(config == NULL ? "" : config);
    mr_error *error = plugin->owner == NULL || plugin->config == NULL
                          ? mr__error_nomem()
                          : open_library(plugin, path, wanted);
    if (error != NULL) {
        mr__plugin_close(plugin);
        return mr__error_prefix(error, "plugin '%s'", path);
    }
    *out = plugin;
    return NULL;
}

void mr__plugin_close(mr_plugin *plugin)
{
    if (plugin == NULL)
        return;
    drop_user(plugin); /* its function is in the library */
    if (plugin->library != NULL)
        (void)dlclose(plugin->library);
    free(plugin->owner);
    free(plugin->config);
    free(plugin);
}

mr_error *mr__plugin_misfit(const mr_plugin *plugin, const char *path, const char *kind,
                            const char *wanted)
{
    return mr__error(MR_E_CONFIG, "plugin '%s': %s set a handler for %s; for a %s it must call %s",
                     path, MR_PLUGIN_ENTRY, plugin->on_job != NULL ? "jobs" : "events", kind,
                     wanted);
}

/* ---- As a consumer's handler --------------------------------------------------------------- */

typedef struct plugin_handler {
    mr_handler base;
    mr_handler *inner;
    mr_plugin *plugin;
} plugin_handler;

static mr_error *run_plugin(mr_handler *handler, mr_tx *tx, const mr_run *run)
{
    mr_handler *inner = ((plugin_handler *)handler)->inner;
    return inner->run(inner, tx, run);
}

static mr_error *deliver_plugin(mr_handler *handler, const mr_run *run, size_t *good)
{
    mr_handler *inner = ((plugin_handler *)handler)->inner;
    return inner->deliver(inner, run, good);
}

static void free_plugin(mr_handler *handler)
{
    plugin_handler *h = (plugin_handler *)handler;
    mr__handler_free(h->inner);
    mr__plugin_close(h->plugin);
    free(h);
}

static mr_error *fill(plugin_handler *h, const char *consumer, const char *path, const char *config)
{
    static const char wanted[] = "mr_plugin_on_event() or mr_plugin_on_batch()";
    MR_TRY(mr__plugin_open(consumer, path, config, wanted, &h->plugin));
    if (h->plugin->on_event != NULL)
        return mr__handler_event(h->plugin->on_event, h->plugin->user, &h->inner);
    if (h->plugin->on_batch != NULL)
        return mr__handler_batch(h->plugin->on_batch, h->plugin->user, &h->inner);
    return mr__plugin_misfit(h->plugin, path, "consumer", wanted);
}

mr_error *mr__handler_plugin(const char *consumer, const char *path, const char *config,
                             mr_handler **out)
{
    plugin_handler *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return mr__error_nomem();
    h->base = (mr_handler){
        .run = run_plugin, .deliver = deliver_plugin, .free = free_plugin, .wants_rows = true};
    mr_error *error = fill(h, consumer, path, config);
    if (error != NULL) {
        free_plugin(&h->base);
        return error;
    }
    h->base.counts = h->inner->counts;
    *out = &h->base;
    return NULL;
}
