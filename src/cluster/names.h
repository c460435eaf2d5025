/* The names of the control plane's tables: configurable, each with its own schema. */
#ifndef MR_CLUSTER_NAMES_H
#define MR_CLUSTER_NAMES_H

#include "pg/ident.h"

/* X(symbol, default table name, option) */
#define MR_TABLES(X)                                                                               \
    X(WORKER_NODES, "worker_nodes", "worker_nodes_table")                                          \
    X(ASSIGNMENTS, "consumer_assignments", "consumer_assignments_table")                           \
    X(CHECKPOINTS, "consumer_checkpoints", "consumer_checkpoints_table")                           \
    X(GAP_SKIPS, "consumer_gap_skips", "consumer_gap_skips_table")                                 \
    X(DEAD_LETTERS, "consumer_dead_letters", "consumer_dead_letters_table")                        \
    X(CONTROLS, "consumer_controls", "consumer_controls_table")                                    \
    X(AUDIT, "consumer_audit", "consumer_audit_table")                                             \
    X(LEADER, "worker_leader_election", "worker_leader_election_table")                            \
    X(PUBLISHED, "log_published", "log_published_table")                                           \
    X(JOBS, "jobs", "jobs_table")                                                                  \
    X(JOB_CLAIMS, "job_claims", "job_claims_table")                                                \
    X(JOBS_ARCHIVE, "jobs_archive", "jobs_archive_table")                                          \
    X(JOB_IDEMPOTENCY, "job_idempotency", "job_idempotency_table")                                 \
    X(JOB_SETTINGS, "job_settings", "job_settings_table")                                          \
    X(QUEUE_CONTROLS, "queue_controls", "queue_controls_table")                                    \
    X(QUEUE_AUDIT, "queue_audit", "queue_audit_table")                                             \
    X(MIGRATIONS, "schema_migrations", "schema_migrations_table")

typedef enum mr_table {
#define MR_TABLE_ENUM(symbol, name, option) MR_TABLE_##symbol,
    MR_TABLES(MR_TABLE_ENUM)
#undef MR_TABLE_ENUM
        MR_TABLE_COUNT
} mr_table;

typedef struct mr_names {
    char schema[MR_IDENT_MAX +
                1]; /* where functions live, and tables without a prefix of their own */
    mr_qname table[MR_TABLE_COUNT]; /* every schema filled in */
} mr_names;

/* The defaults in `schema`. */
mr_error *mr__names_init(mr_names *names, const char *schema) MR_MUST_CHECK;
/* Sets one table from "table" or "schema.table". */
mr_error *mr__names_set(mr_names *names, mr_table table, const char *text) MR_MUST_CHECK;
/* A number for this fleet among others in the same database: the leader's lock and the channel come
 * from it. */
mr_error *mr__names_fleet_key(const mr_names *names, uint64_t *fleet) MR_MUST_CHECK;
/* The channel on which this fleet's workers hear that something changed. */
enum { MR_CHANNEL_MAX = 32 };
mr_error *mr__names_channel(const mr_names *names, char out[MR_CHANNEL_MAX]) MR_MUST_CHECK;
const char *mr__names_option(mr_table table);
const char *mr__names_default(mr_table table);

#endif
