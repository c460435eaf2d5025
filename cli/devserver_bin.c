/* Finding PostgreSQL's programs: MILLRACE_PG_BIN, then PATH, then Debian's versioned places. */
#include "devserver.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has(const char *directory, const char *program)
{
    char *path = cli_format("%s/%s", directory, program);
    bool found = access(path, X_OK) == 0;
    free(path);
    return found;
}

static bool has_server(const char *directory)
{
    return has(directory, "postgres") && has(directory, "initdb");
}

static bool has_psql(const char *directory)
{
    return has(directory, "psql");
}

/* First directory of PATH that `fits`; NULL when there is none. */
static char *on_path(bool (*fits)(const char *))
{
    const char *path = getenv("PATH");
    for (const char *p = path != NULL ? path : ""; *p != '\0';) {
        size_t length = strcspn(p, ":");
        char *part = cli_format("%.*s", (int)length, p);
        if (part[0] == '/' && fits(part))
            return part;
        free(part);
        p += length + (p[length] == ':');
    }
    return NULL;
}

/* Newest of /usr/lib/postgresql/N/bin that fits; with a version, that one if it is there. */
static char *in_debian_places(const char *version, bool (*fits)(const char *))
{
    glob_t found = {0};
    char *best = NULL;
    double highest = -1;
    if (glob("/usr/lib/postgresql/*/bin", 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) {
            const char *path = found.gl_pathv[i];
            double number = strtod(path + strlen("/usr/lib/postgresql/"), NULL);
            bool wanted = version[0] != '\0' && strtod(version, NULL) == number;
            if (!fits(path) || (number <= highest && !wanted))
                continue;
            free(best);
            best = cli_strdup(path);
            highest = wanted ? 1e9 : number;
        }
    globfree(&found);
    return best;
}

static mr_error *from_environment(bool (*fits)(const char *), char **directory)
{
    const char *given = getenv("MILLRACE_PG_BIN");
    *directory = NULL;
    if (given == NULL || given[0] == '\0')
        return NULL;
    *directory = realpath(given, NULL);
    if (*directory != NULL && fits(*directory))
        return NULL;
    free(*directory);
    *directory = NULL;
    return mr_error_new(MR_E_CONFIG, false,
                        "MILLRACE_PG_BIN is '%s', which does not hold PostgreSQL's programs "
                        "(postgres, initdb, psql); set it to a directory that does, or unset it",
                        given);
}

mr_error *dev_find_binaries(const char *version, char **directory)
{
    CLI_TRY(from_environment(has_server, directory));
    /* The version that made the data comes before any other: only that one can open it. */
    if (*directory == NULL && version[0] != '\0') {
        char *exact = cli_format("/usr/lib/postgresql/%s/bin", version);
        if (has_server(exact))
            *directory = cli_strdup(exact);
        free(exact);
    }
    if (*directory == NULL)
        *directory = on_path(has_server);
    if (*directory == NULL)
        *directory = in_debian_places(version, has_server);
    if (*directory != NULL)
        return NULL;
    return mr_error_new(
        MR_E_CONFIG, false,
        "no PostgreSQL server found for the embedded database (looked in PATH and "
        "/usr/lib/postgresql/*/bin). Install it (Debian: apt install postgresql), set "
        "MILLRACE_PG_BIN to the directory with 'postgres' and 'initdb', or use a database of "
        "your own with --database URI");
}

mr_error *dev_find_psql(char **path)
{
    char *directory = NULL;
    CLI_TRY(from_environment(has_psql, &directory));
    if (directory == NULL)
        directory = on_path(has_psql);
    if (directory == NULL)
        directory = in_debian_places("", has_psql);
    if (directory == NULL)
        return mr_error_new(MR_E_CONFIG, false,
                            "psql not found; install it (Debian: apt install postgresql-client)");
    *path = cli_format("%s/psql", directory);
    free(directory);
    return NULL;
}
