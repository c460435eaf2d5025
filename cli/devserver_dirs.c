/* Directories of the embedded PostgreSQL: each private to its owner, never taken over from
 * somebody else. Whoever can open the socket is a superuser, so this is the access control. */
#include "devserver.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static mr_error *make_parents(const char *path)
{
    char *copy = cli_strdup(path);
    mr_error *error = NULL;
    for (char *slash = strchr(copy + 1, '/'); slash != NULL && error == NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0755) != 0 && errno != EEXIST)
            error = cli_io_error("cannot create %s", copy);
        *slash = '/';
    }
    free(copy);
    return error;
}

mr_error *dev_make_home(dev_server *server)
{
    CLI_TRY(make_parents(server->home));
    /* Root's home lets the server's user through to its own directories and shows nothing else. */
    mode_t mode = server->as_root ? 0711 : 0700;
    if (mkdir(server->home, mode) != 0)
        return errno == EEXIST ? NULL : cli_io_error("cannot create %s", server->home);
    if (chmod(server->home, mode) != 0) /* the umask may have taken more away */
        return cli_io_error("cannot set the mode of %s", server->home);
    return NULL;
}

static mr_error *check_private_fd(const dev_server *server, const char *path, int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return cli_io_error("cannot look at %s", path);
    if (info.st_uid != server->uid)
        return mr_error_new(MR_E_IO, false,
                            "%s belongs to another user (uid %u, not %u); remove it, or set "
                            "MILLRACE_HOME to a directory of your own",
                            path, (unsigned)info.st_uid, (unsigned)server->uid);
    if ((info.st_mode & 077) != 0)
        return mr_error_new(MR_E_IO, false,
                            "%s can be entered by others (mode %04o), who would be superusers of "
                            "the embedded PostgreSQL; run: chmod 700 '%s'",
                            path, (unsigned)info.st_mode & 07777, path);
    return NULL;
}

mr_error *dev_check_private(const dev_server *server, const char *path)
{
    int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return cli_io_error("cannot open directory %s", path);
    mr_error *error = check_private_fd(server, path, fd);
    (void)close(fd);
    return error;
}

mr_error *dev_private_dir(const dev_server *server, const char *path)
{
    bool made = mkdir(path, 0700) == 0;
    if (!made && errno != EEXIST)
        return cli_io_error("cannot create %s", path);
    if (made && server->as_root) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        bool given = fd >= 0 && fchown(fd, server->uid, server->gid) == 0;
        mr_error *error = given ? NULL : cli_io_error("cannot give %s to its user", path);
        if (fd >= 0)
            (void)close(fd);
        CLI_TRY(error);
    }
    return dev_check_private(server, path);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info;
    (void)type;
    if (place->level == 0)
        return 0; /* the top belongs to a directory that this user may not write */
    return remove(path);
}

static int remove_below(const void *path)
{
    return nftw(path, remove_entry, 32, FTW_DEPTH | FTW_PHYS) == 0 ? 0 : 1;
}

mr_error *dev_remove_tree(const dev_server *server, const char *path)
{
    if (access(path, F_OK) != 0)
        return NULL;
    if (dev_as_user(server, remove_below, path) != 0 || rmdir(path) != 0)
        return cli_io_error("cannot remove %s, left by an interrupted start", path);
    return NULL;
}
