/* What the commands of the program share: the command table, options, output, databases. */
#ifndef MILLRACE_CLI_H
#define MILLRACE_CLI_H

#include <millrace/millrace.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- Exit codes: a contract that scripts rely on ------------------------------------------- */

typedef enum cli_exit {
    CLI_DONE = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,       /* usage or configuration */
    CLI_UNREACHABLE = 3, /* database unreachable */
    CLI_CONFLICT = 4,    /* expected version */
    CLI_CHECK = 5,       /* lost or doubled work, unhealthy */
} cli_exit;

/* The one place that maps errors to exit codes. */
cli_exit cli_exit_of(const mr_error *error);

/* ---- Commands and their options ------------------------------------------------------------ */

/* One option of a command; a list ends with a NULL name. A flag has no `value`. */
typedef struct cli_option {
    const char *name;  /* without dashes */
    const char *value; /* what the value is called in the help, NULL for a flag */
    const char *help;
} cli_option;

enum { CLI_MAX_OPTIONS = 24 };

/* What a command line gave: values by the index of the command's own options ("" never stands for
 * "not given": that is NULL), and what is left. Strings are argv's. */
typedef struct cli_args {
    const char *value[CLI_MAX_OPTIONS];
    char **rest; /* ends with NULL */
    int count;
    bool help;
} cli_args;

/* Global options, and what the commands know of the program. */
typedef struct cli_context {
    const char *database, *schema, *config;
    bool json, verbose, version;
    bool embedded; /* the database in use is the embedded one */
} cli_context;

typedef struct cli_command {
    const char *name;
    const char *summary; /* one line of the list; NULL hides the command */
    const char *usage;   /* what follows "millrace NAME" */
    const char *details; /* paragraphs of the help, "" for none */
    const cli_option *options;
    const char *rest_after; /* after this word everything belongs to another program */
    mr_error *(*run)(cli_context *cli, const cli_args *args);
} cli_command;

extern const cli_command cli_cmd_append, cli_cmd_consumers, cli_cmd_dead_letters, cli_cmd_demo,
    cli_cmd_demo_worker, cli_cmd_dev, cli_cmd_enqueue, cli_cmd_gaps, cli_cmd_jobs, cli_cmd_options,
    cli_cmd_queues, cli_cmd_ring, cli_cmd_run, cli_cmd_schema, cli_cmd_status, cli_cmd_workers;

/* Splits a command line into options and the rest. With `command` NULL it stops at the first word
 * that is no option. `args->rest` points into `argv`, which is reordered. */
mr_error *cli_parse(cli_context *cli, const cli_command *command, int argc, char **argv,
                    cli_args *args) MR_MUST_CHECK;
void cli_print_options(FILE *out, const cli_option *options);
extern const cli_option cli_global_options[];
/* An unknown word among `count` names; the message suggests the nearest one. */
mr_error *cli_unknown(const char *what, const char *word, const char *const *names, size_t count,
                      const char *see) MR_MUST_CHECK;
/* Which of the NULL-terminated names the first remaining word is; an error names the choices. */
mr_error *cli_subcommand(const char *command, const cli_args *args, const char *const *names,
                         int *index) MR_MUST_CHECK;
/* Fails when there are more words than the command takes. */
mr_error *cli_at_most(const cli_args *args, int count) MR_MUST_CHECK;
mr_error *cli_number(const char *option, const char *text, int64_t low, int64_t high,
                     int64_t *value) MR_MUST_CHECK;
/* "500ms", "30s", "5m", "1h", "0", as in the YAML file. */
mr_error *cli_duration(const char *option, const char *text, int64_t *ms) MR_MUST_CHECK;

/* ---- Saying things ------------------------------------------------------------------------- */

/* "millrace: …" on stderr. */
void cli_say(const char *format, ...) MR_PRINTF(1, 2);
/* The error as one message on stderr, with what to do where the library cannot know it. */
void cli_report(const mr_error *error);
/* Rows as an aligned table or, with --json, an array of objects; `empty` is said when there are
 * none. */
mr_error *cli_print_rows(const cli_context *cli, const PGresult *rows,
                         const char *empty) MR_MUST_CHECK;
/* A table of `rows` times `count` cells, with titles. Numbers are flush right. */
typedef struct cli_column {
    const char *title;
    bool number;
} cli_column;
void cli_print_table(const cli_column *columns, int count, const char *const *cells, int rows);
/* Data may hold escape sequences; a terminal must not obey them. A copy with control characters
 * replaced, free(); with `lines` newlines and tabs stay. */
char *cli_plain(const char *text, bool lines);
/* A line of data that may hold anything, after a text of ours. */
void cli_print_line(const char *before, const char *data);
/* A cell by its column's name; "" for NULL. Belongs to the rows. */
const char *cli_cell(const PGresult *rows, int row, const char *column);
/* Up to `most` rows as a list of objects. */
json_t *cli_rows_json(const PGresult *rows, int most);
/* One row as an object, typed by the columns' types. */
json_t *cli_row_json(const PGresult *rows, int row);
/* Prints and frees a JSON value. */
mr_error *cli_print_json(json_t *value) MR_MUST_CHECK;

/* ---- Small things -------------------------------------------------------------------------- */

/* A formatted string, free(). The program ends when memory runs out: no command can go on then. */
char *cli_format(const char *format, ...) MR_PRINTF(1, 2);
char *cli_strdup(const char *text);
void *cli_alloc(size_t count, size_t size); /* zeroed */
/* MR_E_IO with errno's text. */
mr_error *cli_io_error(const char *format, ...) MR_PRINTF(1, 2) MR_MUST_CHECK;
uint64_t cli_hash(const char *text);
/* Who runs the program, "user@host", free(): what the audit says unless --actor says otherwise. */
char *cli_actor(const char *option);
int64_t cli_now_ms(void); /* monotonic */
void cli_sleep_ms(int64_t ms);
/* The last `lines` lines of a file, free(); "" when it cannot be read. */
char *cli_tail(const char *path, int lines);
/* Path of the running program, free(). */
char *cli_program(void);

#define CLI_TRY(expression)                                                                        \
    do {                                                                                           \
        mr_error *cli_try_error_ = (expression);                                                   \
        if (cli_try_error_ != NULL)                                                                \
            return cli_try_error_;                                                                 \
    } while (0)

/* ---- Databases ----------------------------------------------------------------------------- */

/* A conf with the config file (`file`, else --config, else none) read and --schema applied.
 * `*out` is the caller's. */
mr_error *cli_conf(const cli_context *cli, const char *file, mr_conf **out) MR_MUST_CHECK;
/* Decides which database and sets it in the conf: --database, MILLRACE_DATABASE, DATABASE_URL, the
 * config file's, else the embedded PostgreSQL, which is started and announced. */
mr_error *cli_database(cli_context *cli, mr_conf *conf) MR_MUST_CHECK;
mr_error *cli_connect(const mr_conf *conf, PGconn **conn) MR_MUST_CHECK;
/* As mr_connect(), with the server's notices kept off stderr. */
mr_error *cli_connect_to(const char *uri, const char *application, PGconn **conn) MR_MUST_CHECK;
/* On the embedded server installs the schema when there is none: nobody else would. */
mr_error *cli_embedded_schema(const cli_context *cli, const mr_conf *conf,
                              PGconn *conn) MR_MUST_CHECK;
/* All of it for a command that works on one connection. */
mr_error *cli_open(cli_context *cli, mr_conf **conf_out, PGconn **conn_out) MR_MUST_CHECK;
/* All of it for one listing of mr_list(): `*rows` is the caller's. */
mr_error *cli_list(cli_context *cli, const char *what, PGresult **rows) MR_MUST_CHECK;
/* Runs a statement for its effect. */
mr_error *cli_exec(PGconn *conn, const char *sql) MR_MUST_CHECK;
mr_error *cli_query(PGconn *conn, const char *sql, PGresult **rows) MR_MUST_CHECK;
/* The first column of the only row as a number. */
mr_error *cli_query_int(PGconn *conn, const char *sql, int64_t *value) MR_MUST_CHECK;

#endif
