/* A shared object whose entry was called: what it set. */
#ifndef MR_HANDLER_PLUGIN_H
#define MR_HANDLER_PLUGIN_H

#include "base/error.h"

/* What the entry sees, and what it set. */
struct mr_plugin {
    char *owner, *config; /* the consumer or the queue it is for */
    void *library;
    mr_event_fn on_event;
    mr_batch_fn on_batch;
    mr_job_fn on_job;
    void *user;
    void (*user_free)(void *);
    int handlers; /* how often one was set */
};

/* Loads it and calls its entry; `config` may be NULL. It has set one handler then, which need not
 * be of the right kind. `wanted` says for errors what it must call. */
mr_error *mr__plugin_open(const char *owner, const char *path, const char *config,
                          const char *wanted, mr_plugin **out) MR_MUST_CHECK;
/* Nothing of it may be used afterwards: its code is gone. */
void mr__plugin_close(mr_plugin *plugin);
/* It set a handler of the wrong kind. */
mr_error *mr__plugin_misfit(const mr_plugin *plugin, const char *path, const char *kind,
                            const char *wanted) MR_MUST_CHECK;

#endif
