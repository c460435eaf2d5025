/* What a worker is made from: the options set so far, the consumers and the queues. */
#ifndef MR_RUNTIME_CONF_H
#define MR_RUNTIME_CONF_H

#include "cluster/names.h"
#include "log/spec.h"
#include "runtime/options.h"

#include <stdatomic.h>

struct mr_consumer {
    mr_bag bag;
    mr_event_fn on_event; /* at most one of these, sql, sql_batch, exec and plugin */
    mr_batch_fn on_batch;
    void *user;
    void (*user_free)(void *);
    mr_dead_letter_fn on_dead_letter;
    void *on_dead_letter_user;
    mr_setup_fn on_setup;
    void *on_setup_user;
    atomic_int holders; /* places that own it, when it came while the worker ran */
};

struct mr_queue {
    mr_bag bag;
    mr_job_fn on_job; /* at most one of this, sql, exec and plugin */
    void *user;
    void (*user_free)(void *);
    mr_job_fn before;
    mr_job_after_fn after;
    void *handle_user;
    mr_dequeue_fn on_dequeue;
    void *dequeue_user;
};

struct mr_conf {
    mr_bag bag;
    mr_consumer **consumers;
    size_t consumer_count;
    mr_queue **queues;
    size_t queue_count;
    mr_log_fn sink;
    void *sink_user;
    mr_lag_fn on_lag;
    void *on_lag_user;
};

mr_error *mr__conf_names(const mr_conf *conf, mr_names *names) MR_MUST_CHECK;
mr_error *mr__conf_log_spec(const mr_conf *conf, mr_log_spec *spec) MR_MUST_CHECK;
/* Sets an option of a section; MR_E_CONFIG for an unknown name. */
mr_error *mr__conf_set_in(mr_bag *bag, const char *section, const char *name,
                          const char *value) MR_MUST_CHECK;
/* The consumer's own number, or the worker's when it has none. */
int64_t mr__conf_number(const mr_conf *conf, const mr_consumer *consumer, mr_opt own,
                        mr_opt worker);
/* Everything about a consumer that can be checked without a database. */
mr_error *mr__consumer_validate(const mr_consumer *consumer) MR_MUST_CHECK;

#endif
