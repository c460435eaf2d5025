/* Small helpers of the program: strings, time, files, errors from errno. */
#include "cli.h"

#include <errno.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Noreturn void out_of_memory(void)
{
    cli_say("out of memory");
    exit(CLI_FAILED);
}

char *cli_format(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0)
        out_of_memory();
    return text;
}

char *cli_strdup(const char *text)
{
    return cli_format("%s", text);
}

void *cli_alloc(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        out_of_memory();
    return memory;
}

mr_error *cli_io_error(const char *format, ...)
{
    int number = errno;
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0)
        out_of_memory();
    mr_error *error = mr_error_new(MR_E_IO, false, "%s: %s", text, strerror(number));
    free(text);
    return error;
}

/* FNV-1a 64: short, stable names for paths. */
uint64_t cli_hash(const char *text)
{
    uint64_t hash = 14695981039346656037u;
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++)
        hash = (hash ^ *p) * 1099511628211u;
    return hash;
}

char *cli_actor(const char *option)
{
    if (option != NULL)
        return cli_strdup(option);
    char host[256] = "", names[4096];
    struct passwd entry, *found = NULL;
    (void)gethostname(host, sizeof(host) - 1);
    if (getpwuid_r(geteuid(), &entry, names, sizeof(names), &found) != 0 || found == NULL)
        return cli_format("uid %ld@%s", (long)geteuid(), host);
    return cli_format("%s@%s", found->pw_name, host);
}

int64_t cli_now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void cli_sleep_ms(int64_t ms)
{
    struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000};
    (void)nanosleep(&wait, NULL);
}

char *cli_tail(const char *path, int lines)
{
    enum { WINDOW = 8192 };
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return cli_strdup("");
    char text[WINDOW + 1];
    if (fseek(file, -WINDOW, SEEK_END) != 0)
        rewind(file);
    size_t length = fread(text, 1, WINDOW, file);
    (void)fclose(file);
    while (length > 0 && text[length - 1] == '\n')
        length--;
    text[length] = '\0';
    size_t start = length;
    for (int found = 0; start > 0; start--)
        if (text[start - 1] == '\n' && ++found == lines)
            break;
    return cli_strdup(text + start);
}

char *cli_program(void)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (length < 0)
        return cli_strdup("millrace");
    path[length] = '\0';
    return cli_strdup(path);
}
