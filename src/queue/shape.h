/* A mapping checked against the catalog: real names and types, whether the rows can be locked, what
 * would make the queue cheaper or safer. */
#ifndef MR_QUEUE_SHAPE_H
#define MR_QUEUE_SHAPE_H

#include "pg/conn.h"
#include "queue/mapping.h"
#include "queue/order.h"

enum { MR_QUEUE_TYPE_MAX = 2 * MR_IDENT_MAX + 16 };

typedef struct mr_queue_shape {
    const mr_mapping *mapping; /* borrowed */
    mr_qname table, view;      /* schemas filled in */
    char table_oid[16];
    bool direct;                                       /* no view: the table itself is read */
    bool has[MR_JOB_COLUMN_COUNT];                     /* optional ones may be missing */
    char type[MR_JOB_COLUMN_COUNT][MR_QUEUE_TYPE_MAX]; /* qualified and quoted, for casts */
    bool utc[MR_JOB_COLUMN_COUNT];                     /* timestamp without time zone: holds UTC */
    int limit[MR_JOB_COLUMN_COUNT]; /* characters, digits of seconds; -1 = none */
    bool logs_filled;               /* execution_logs must not be NULL */
    char **view_columns;            /* every column of the view, in its order */
    size_t view_column_count;
    mr_order order; /* count 0: claims cannot start at a low-water mark */
    char order_type[MR_ORDER_KEYS][MR_QUEUE_TYPE_MAX];
    char *notes; /* advice, a line each; "" = none */
} mr_queue_shape;

/* Looks the mapping up. All that is wrong is told in one MR_E_CONFIG, each with what to do about
 * it.
 */
mr_error *mr__queue_shape_read(PGconn *conn, const mr_mapping *mapping,
                               mr_queue_shape *out) MR_MUST_CHECK;
void mr__queue_shape_free(mr_queue_shape *shape);
/* Whether a claim changes the table's column of this name. */
bool mr__queue_shape_changed(const mr_queue_shape *shape, const char *column);

/* ---- Between the files that read a shape ------------------------------------------------------
 */

enum {
    MR_REL_NAME,
    MR_REL_TYPE,
    MR_REL_BASE,
    MR_REL_KIND,
    MR_REL_NOT_NULL,
    MR_REL_LIMIT,
    MR_REL_OID,
    MR_REL_DEFAULT
};

/* The columns of one relation, one row each with the fields above. */
typedef struct mr_relation_info {
    mr_qname name;
    char oid[16]; /* "" = there is no such relation */
    char kind;    /* pg_class.relkind */
    PGresult *columns;
    int count;
} mr_relation_info;

mr_error *mr__relation_read(PGconn *conn, const mr_qname *name,
                            mr_relation_info *out) MR_MUST_CHECK;
void mr__relation_clear(mr_relation_info *info);
#define MR_AUTO_RELATION __attribute__((cleanup(mr__relation_clear))) mr_relation_info
int mr__relation_find(const mr_relation_info *info, const char *column); /* -1 = none */

/* Which indexes there are, and which are missed: an error when the id is not unique, else notes. */
mr_error *mr__queue_shape_indexes(PGconn *conn, const mr_queue_shape *shape, mr_buf *problems,
                                  mr_buf *notes) MR_MUST_CHECK;
/* Lets the server parse the operator's expressions, each by itself. */
mr_error *mr__queue_shape_expressions(PGconn *conn, const mr_queue_shape *shape,
                                      mr_buf *problems) MR_MUST_CHECK;
/* Starts a new line of `lines`. */
void mr__queue_shape_say(mr_buf *lines, const char *format, ...) MR_PRINTF(2, 3);

#endif
