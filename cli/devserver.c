/* Where the embedded PostgreSQL lives, whom it runs as, and whether it runs. Reads only. */
#include "devserver.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* The home as an absolute path without symbolic links, so that /proc shows the same. */
static mr_error *find_home(dev_server *server)
{
    const char *given = getenv("MILLRACE_HOME");
    char *path = cli_strdup(given != NULL && given[0] != '\0' ? given : ".millrace");
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
    char *resolved = realpath(path, NULL);
    if (resolved != NULL) {
        server->home = resolved;
        server->exists = true;
        free(path);
        return NULL;
    }
    char *here = path[0] == '/' ? cli_strdup("") : getcwd(NULL, 0);
    mr_error *error = here == NULL ? cli_io_error("cannot tell the current directory") : NULL;
    if (error == NULL)
        server->home = cli_format("%s%s%s", here, path[0] == '/' ? "" : "/", path);
    free(here);
    free(path);
    return error;
}

static void set_user(dev_server *server, const struct passwd *entry, uid_t uid, gid_t gid)
{
    server->uid = entry != NULL ? entry->pw_uid : uid;
    server->gid = entry != NULL ? entry->pw_gid : gid;
    server->user = cli_strdup(entry != NULL ? entry->pw_name : "");
}

/* PostgreSQL refuses to run as root. Data that is there already decides; then postgres, nobody. */
static mr_error *choose_user(dev_server *server)
{
    server->as_root = geteuid() == 0;
    if (!server->as_root) {
        set_user(server, NULL, geteuid(), getegid());
        return NULL;
    }
    char *data = cli_format("%s/pg", server->home);
    struct stat info;
    bool owned = lstat(data, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid != 0;
    free(data);
    if (owned) {
        set_user(server, getpwuid(info.st_uid), info.st_uid, info.st_gid);
        return NULL;
    }
    const struct passwd *entry = getpwnam("postgres");
    if (entry == NULL)
        entry = getpwnam("nobody");
    if (entry == NULL || entry->pw_uid == 0)
        return mr_error_new(MR_E_CONFIG, false,
                            "PostgreSQL does not run as root, and there is no user 'postgres' or "
                            "'nobody' to run it as; run millrace as an ordinary user");
    set_user(server, entry, 0, 0);
    return NULL;
}

static int can_enter(const void *path)
{
    return chdir(path) == 0 ? 0 : 1;
}

/* The deepest part of the home's path that exists: what can be tried before anything is made. */
static bool home_reachable(const dev_server *server)
{
    char *path = cli_strdup(server->home);
    while (access(path, F_OK) != 0 && strrchr(path, '/') > path)
        *strrchr(path, '/') = '\0';
    if (access(path, F_OK) != 0)
        path[1] = '\0';
    bool reachable = dev_as_user(server, can_enter, path) == 0;
    free(path);
    return reachable;
}

/* Short enough for a socket's address, and without a comma: libpq takes that for two hosts. */
static bool socket_fits(const char *directory)
{
    return strchr(directory, ',') == NULL && strlen(directory) + strlen("/.s.PGSQL.5432") <
                                                 sizeof(((struct sockaddr_un *)0)->sun_path);
}

static void choose_sockets(dev_server *server)
{
    server->sockets = cli_format("%s/run", server->base);
    if (socket_fits(server->sockets))
        return;
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    bool own = !server->as_root && runtime != NULL && runtime[0] == '/';
    free(server->sockets);
    server->sockets = cli_format("%s/millrace-%u-%016llx", own ? runtime : "/tmp",
                                 (unsigned)server->uid, (unsigned long long)cli_hash(server->base));
}

/* Everything that is not plainly safe in a URI goes as %XX, so any path works. */
static char *encode(const char *text)
{
    char *out = cli_alloc(strlen(text) * 3 + 1, 1), *p = out;
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                     (*c >= '0' && *c <= '9') || strchr("/._-~", *c) != NULL;
        if (plain)
            *p++ = (char)*c;
        else
            p += snprintf(p, 4, "%%%02X", *c);
    }
    return out;
}

char *dev_uri(const dev_server *server, const char *database)
{
    char *directory = encode(server->sockets);
    /* The port is named because PGPORT in the environment would count otherwise. */
    char *uri = cli_format("postgresql://postgres@/%s?host=%s&port=5432", database, directory);
    free(directory);
    return uri;
}

mr_error *dev_open(dev_server **out)
{
    dev_server *server = cli_alloc(1, sizeof(*server));
    mr_error *error = find_home(server);
    if (error == NULL)
        error = choose_user(server);
    if (error != NULL) {
        dev_free(server);
        return error;
    }
    if (server->as_root && !home_reachable(server))
        server->base =
            cli_format("/var/tmp/millrace-%016llx", (unsigned long long)cli_hash(server->home));
    else
        server->base = cli_strdup(server->home);
    server->data = cli_format("%s/pg", server->base);
    server->log = cli_format("%s/server.log", server->base);
    choose_sockets(server);
    server->uri = dev_uri(server, "millrace");
    *out = server;
    return NULL;
}

void dev_free(dev_server *server)
{
    if (server == NULL)
        return;
    free(server->home);
    free(server->base);
    free(server->data);
    free(server->sockets);
    free(server->log);
    free(server->uri);
    free(server->user);
    free(server);
}

char *dev_data_version(const dev_server *server)
{
    char *path = cli_format("%s/PG_VERSION", server->data), text[32] = "";
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fgets(text, sizeof(text), file) == NULL)
            text[0] = '\0';
        (void)fclose(file);
    }
    free(path);
    text[strcspn(text, "\n")] = '\0';
    return cli_strdup(text);
}

dev_process dev_find(const dev_server *server)
{
    dev_process process = {0};
    char *path = cli_format("%s/postmaster.pid", server->data), line[PATH_MAX + 2];
    FILE *file = fopen(path, "re");
    free(path);
    /* Lines of the file: pid, data directory, start time, port, first socket directory, … */
    for (int i = 1; file != NULL && i <= 5 && fgets(line, sizeof(line), file) != NULL; i++) {
        line[strcspn(line, "\n")] = '\0';
        if (i == 1)
            process.pid = (pid_t)strtol(line, NULL, 10);
        if (i == 5)
            process.foreign = line[0] != '\0' && strcmp(line, server->sockets) != 0;
    }
    if (file != NULL)
        (void)fclose(file);
    if (process.pid <= 1 || !dev_is_ours(server, process.pid))
        return (dev_process){0};
    return process;
}
