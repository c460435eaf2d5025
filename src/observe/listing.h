/* Listings for people and scripts, straight from the database. */
#ifndef MR_OBSERVE_LISTING_H
#define MR_OBSERVE_LISTING_H

#include "cluster/names.h"
#include "log/spec.h"

/* See mr_list() in the public header. */
mr_error *mr__list_rows(PGconn *conn, const mr_names *names, const mr_log_spec *log,
                        const char *what, PGresult **rows) MR_MUST_CHECK;

#endif
