/* A worker in this process, with signals and log lines connected. */
#ifndef MILLRACE_CLI_WORKER_H
#define MILLRACE_CLI_WORKER_H

#include "cli.h"

/* Runs until stopped or drained; SIGTERM and SIGINT stop it. Both take the conf. */
mr_error *worker_run(mr_conf *conf) MR_MUST_CHECK;
mr_error *worker_check(mr_conf *conf) MR_MUST_CHECK;

#endif
