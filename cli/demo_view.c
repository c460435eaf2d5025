/* The demo on the screen: redrawn in place on a terminal, a line a second elsewhere. */
#include "demo.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { BAR = 30, LINE_MS = 1000, RATE_MS = 500 };

void demo_view_start(demo_view *view)
{
    *view = (demo_view){.terminal = isatty(STDOUT_FILENO) != 0, .begin = cli_now_ms()};
    view->last_ms = view->begin;
    if (view->terminal)
        (void)fputs("\033[?25l", stdout); /* hide the cursor */
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

static void draw_consumer(const demo_consumer *consumer, int64_t handled, int64_t committed)
{
    int64_t filled = committed > 0 ? handled * BAR / committed : BAR;
    filled = filled > BAR ? BAR : filled;
    char bar[BAR + 1];
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = '\0';
    int64_t lag = committed > handled ? committed - handled : 0;
    (void)printf("\033[K  %-8s %-12s [%s] %9" PRId64 " handled %7" PRId64 " behind\n",
                 consumer->name, consumer->kind, bar, handled, lag);
}

static void draw(demo_view *view, const char *phase, const demo_tally *tally,
                 const demo_counts *counts, int workers)
{
    int64_t committed = tally->committed, rolled_back = tally->rolled_back;
    if (view->drawn > 0)
        (void)printf("\033[%dA", view->drawn);
    (void)printf("\033[K%s, %.1f s: %d writers, %d worker%s, %.0f events/s\n", phase,
                 (double)(cli_now_ms() - view->begin) / 1000.0, DEMO_WRITERS, workers,
                 workers == 1 ? "" : "s", view->rate);
    (void)printf("\033[K  %" PRId64 " committed, %" PRId64 " rolled back, %" PRId64
                 " holes settled\n",
                 committed, rolled_back, counts->holes);
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        draw_consumer(&demo_consumers[i], counts->handled[i], committed);
    view->drawn = 2 + DEMO_CONSUMERS;
}

static void print_line(const demo_view *view, const char *phase, const demo_tally *tally,
                       const demo_counts *counts)
{
    (void)printf("%s, %.1f s: %" PRId64 " committed, %" PRId64 " rolled back, %" PRId64
                 " holes settled; handled",
                 phase, (double)(cli_now_ms() - view->begin) / 1000.0, tally->committed,
                 tally->rolled_back, counts->holes);
    for (int i = 0; i < DEMO_CONSUMERS; i++)
        (void)printf(" %s %" PRId64, demo_consumers[i].name, counts->handled[i]);
    (void)putchar('\n');
}

void demo_view_show(demo_view *view, const char *phase, const demo_tally *tally,
                    const demo_counts *counts, int workers)
{
    update_rate(view, tally->committed);
    if (view->terminal) {
        draw(view, phase, tally, counts, workers);
    } else if (cli_now_ms() - view->last_line >= LINE_MS) {
        view->last_line = cli_now_ms();
        print_line(view, phase, tally, counts);
    }
    (void)fflush(stdout);
}

void demo_view_end(demo_view *view)
{
    if (view->terminal)
        (void)fputs("\033[?25h", stdout);
    (void)fflush(stdout);
}
