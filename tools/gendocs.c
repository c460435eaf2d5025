/* Writes docs/metrics.md and docs/errors.md from the library's own tables, so that they cannot
 * differ from what it does. usage: gendocs metrics|errors */
#include <millrace/millrace.h>
#include <stdio.h>
#include <string.h>

static void print_metrics(void)
{
    puts("# Counters\n\n"
         "Written by `./dev docs` from the library's table; `mr_worker_metric()` reads each by its "
         "name.\n\n"
         "| name | meaning |\n|---|---|");
    for (size_t i = 0; i < mr_metric_count(); i++) {
        printf("| `%s` | %s |\n", mr_metric_name(i), mr_metric_meaning(i));
    }
}

static void print_errors(void)
{
    puts("# Error codes\n\n"
         "Written by `./dev docs` from the list in `millrace.h`. Log lines carry the name, "
         "`mr_error_code()` gives the symbol.\n\n"
         "| symbol | name | meaning |\n|---|---|---|");
#define PRINT_CODE(symbol, name, meaning)                                                          \
    printf("| `%s` | `%s` | %s |\n", #symbol, mr_code_name(symbol), mr_code_meaning(symbol));
    MR_CODES(PRINT_CODE)
#undef PRINT_CODE
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "metrics") == 0) {
        print_metrics();
    } else if (argc == 2 && strcmp(argv[1], "errors") == 0) {
        print_errors();
    } else {
        fputs("usage: gendocs metrics|errors\n", stderr);
        return 2;
    }
    return 0;
}
