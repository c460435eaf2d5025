/* The demo's view: a frame redrawn in place on a terminal, a line a second elsewhere. */
#include "demo.h"

#include <inttypes.h>
#include <langinfo.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR = 20, LINE_MS = 1000, RATE_MS = 500, LEAST_ROWS = 24 };

/* ---- Parts --------------------------------------------------------------------------------- */

static bool capable_terminal(void)
{
    const char *term = getenv("TERM");
    struct winsize size;
    if (!isatty(STDOUT_FILENO) || term == NULL || strcmp(term, "dumb") == 0)
        return false;
    /* A frame that does not fit would scroll instead of standing still. */
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 ||
           size.ws_row >= LEAST_ROWS;
}

void demo_view_start(demo_view *view, bool silent)
{
    *view = (demo_view){.silent = silent,
                        .terminal = !silent && capable_terminal(),
                        .color = getenv("NO_COLOR") == NULL,
                        .utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0,
                        .begin = cli_now_ms()};
    view->last_ms = view->begin;
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        view->owner[i] = -1;
    if (view->terminal)
        (void)fputs("\033[?25l\n", stdout); /* hide the cursor */
}

static double seconds_since(const demo_view *view)
{
    return (double)(cli_now_ms() - view->begin) / 1000.0;
}

static void update_rate(demo_view *view, int64_t committed)
{
    int64_t now = cli_now_ms(), passed = now - view->last_ms;
    if (passed < RATE_MS)
        return;
    view->rate = (double)(committed - view->last_committed) * 1000.0 / (double)passed;
    view->last_ms = now;
    view->last_committed = committed;
}

typedef struct number {
    char text[32];
} number;

/* 1234567 as 1,234,567. */
static number grouped(int64_t value)
{
    number digits, out;
    int length = snprintf(digits.text, sizeof(digits.text), "%" PRId64, value), used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out.text[used++] = ',';
        out.text[used++] = digits.text[i];
    }
    out.text[used] = '\0';
    return out;
}

static const char *style(const demo_view *view, const char *code)
{
    return view->color ? code : "";
}
#define BOLD "\033[1m"
#define DIM "\033[2m"
#define RED "\033[31m"
#define PLAIN "\033[0m"

/* ---- On a terminal ------------------------------------------------------------------------- */

static void draw_consumer(FILE *out, const demo_view *view, int index, const demo_scene *scene)
{
    int64_t committed = scene->tally->committed, handled = scene->counts->handled[index];
    int64_t filled = committed > 0 ? handled * BAR / committed : 0;
    int owner = scene->fleet->owner[index];
    char name[32];
    (void)snprintf(name, sizeof(name), owner < 0 ? "moving" : "worker %d", owner + 1);
    if (owner < 0 && scene->workers->killed < 0)
        (void)snprintf(name, sizeof(name), "-");
    (void)fprintf(out, "  %-8s  %-11s  %s%-9s%s  ", demo_consumers[index].name,
                  demo_consumers[index].kind, style(view, owner < 0 ? RED : ""), name,
                  style(view, owner < 0 ? PLAIN : ""));
    for (int i = 0; i < BAR; i++)
        (void)fputs(i < filled ? (view->utf8 ? "█" : "#") : (view->utf8 ? "░" : "."), out);
    (void)fprintf(out, "  %9s  %7s\033[K\n", grouped(handled).text,
                  grouped(committed > handled ? committed - handled : 0).text);
}

static void draw_worker(FILE *out, const demo_view *view, int index, const demo_scene *scene)
{
    bool killed = scene->workers->killed == index;
    (void)fprintf(out, "  worker %d  ", index + 1);
    if (killed)
        (void)fprintf(out, "%skilled%s", style(view, RED), style(view, PLAIN));
    else
        (void)fprintf(out, "pid %-8d %s", (int)scene->workers->pid[index],
                      scene->fleet->leader == index ? "leader" : "");
    (void)fputs("\033[K\n", out);
}

static int draw_frame(FILE *out, const demo_view *view, const demo_scene *scene)
{
    (void)fprintf(out,
                  "%smillrace demo%s  %-8s %5.1f s    %d writers, %d worker%s, %s events/s\033[K\n",
                  style(view, BOLD), style(view, PLAIN), scene->phase, seconds_since(view),
                  DEMO_WRITERS, scene->workers->count, scene->workers->count == 1 ? "" : "s",
                  grouped((int64_t)view->rate).text);
    (void)fprintf(out,
                  "\033[K\n  %s committed    %s rolled back    %s holes settled\033[K\n\033[K\n",
                  grouped(scene->tally->committed).text, grouped(scene->tally->rolled_back).text,
                  grouped(scene->counts->holes).text);
    (void)fprintf(out, "%s  %-8s  %-11s  %-9s  %-20s  %9s  %7s%s\033[K\n", style(view, DIM),
                  "consumer", "handler", "owner", "progress", "handled", "behind",
                  style(view, PLAIN));
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        draw_consumer(out, view, i, scene);
    (void)fputs("\033[K\n", out);
    for (int i = 0; i < scene->workers->count; i++)
        draw_worker(out, view, i, scene);
    (void)fputs("\033[K\n", out);
    for (int i = 0; i < view->notes; i++)
        (void)fprintf(out, "  %s\033[K\n", view->note[i]);
    return 7 + DEMO_CONSUMERS + scene->workers->count + view->notes;
}

/* One write a frame, and no line break by the terminal: nothing flickers or scrolls. */
static void draw(demo_view *view, const demo_scene *scene)
{
    char *frame = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&frame, &length);
    if (out == NULL)
        return;
    (void)fputs("\033[?7l", out);
    if (view->drawn > 0)
        (void)fprintf(out, "\033[%dA", view->drawn);
    view->drawn = draw_frame(out, view, scene);
    (void)fputs("\033[?7h", out);
    if (fclose(out) == 0) {
        (void)fflush(stdout);
        ssize_t written = write(STDOUT_FILENO, frame, length);
        (void)written; /* a frame that cannot be shown is no loss */
    }
    free(frame);
}

/* ---- Elsewhere ----------------------------------------------------------------------------- */

static void print_owners(demo_view *view, const demo_fleet *fleet)
{
    bool all = true, changed = false;
    for (int i = 0; i < DEMO_CONSUMERS; i++) {
        all = all && fleet->owner[i] >= 0;
        changed = changed || fleet->owner[i] != view->owner[i];
    }
    if (!all || !changed)
        return;
    (void)printf("owners, %.1f s:", seconds_since(view));
    for (int i = 0; i < DEMO_CONSUMERS; i++) {
        view->owner[i] = fleet->owner[i];
        (void)printf("%s %s worker %d", i == 0 ? "" : ",", demo_consumers[i].name,
                     fleet->owner[i] + 1);
    }
    (void)putchar('\n');
}

static void print_line(demo_view *view, const demo_scene *scene)
{
    print_owners(view, scene->fleet);
    if (cli_now_ms() - view->last_line < LINE_MS)
        return;
    view->last_line = cli_now_ms();
    (void)printf("%s, %.1f s: %" PRId64 " committed, %" PRId64 " rolled back, %" PRId64
                 " holes settled; handled",
                 scene->phase, seconds_since(view), scene->tally->committed,
                 scene->tally->rolled_back, scene->counts->holes);
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        (void)printf(" %s %" PRId64, demo_consumers[i].name, scene->counts->handled[i]);
    (void)putchar('\n');
}

void demo_view_show(demo_view *view, const demo_scene *scene)
{
    if (view->silent)
        return;
    update_rate(view, scene->tally->committed);
    if (view->terminal)
        draw(view, scene);
    else
        print_line(view, scene);
    (void)fflush(stdout);
}

void demo_view_note(demo_view *view, const char *text)
{
    if (view->silent)
        return;
    if (!view->terminal)
        (void)printf("%s\n", text);
    else if (view->notes < DEMO_NOTES)
        view->note[view->notes++] = cli_format("%5.1f s  %s", seconds_since(view), text);
    (void)fflush(stdout);
}

void demo_view_end(demo_view *view)
{
    if (view->terminal)
        (void)fputs("\033[?25h\n", stdout);
    (void)fflush(stdout);
    for (int i = 0; i < view->notes; i++)
        free(view->note[i]);
    view->notes = 0;
}
