/* The circle of buckets as a picture of characters: colours and half blocks where the terminal has
 * them, letters elsewhere. */
#include "ring.h"

#include <langinfo.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* In pixels, two of which share a character cell, one above the other. */
enum { SIZE = 44, ROWS = SIZE / 2, LEGEND = ROWS - 2, LEAST_COLUMNS = SIZE + 30 };
static const double outer[2] = {21.8, 15.6}, inner[2] = {14.2, 10.2}; /* radii of the bands */

/* What a pixel shows besides a worker's index. */
enum { EMPTY = -1, STAYED = -2 };

typedef struct picture {
    const mr_ring *ring, *after;
    bool letters;
} picture;

bool ring_can_draw(void)
{
    const char *term = getenv("TERM");
    struct winsize size;
    if (!isatty(STDOUT_FILENO) || term == NULL || strcmp(term, "dumb") == 0)
        return false;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 ||
           size.ws_col >= LEAST_COLUMNS;
}

/* Colours of the 256 that are told apart on dark and on light ground; they repeat. */
static int color_of(int worker)
{
    static const unsigned char palette[] = {33,  208, 40,  198, 141, 220, 44,  160,
                                            154, 171, 30,  209, 63,  100, 205, 94,
                                            117, 28,  133, 215, 67,  124, 78,  99};
    return palette[(size_t)worker % sizeof(palette)];
}

static char letter_of(int worker)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    return letters[(size_t)worker % (sizeof(letters) - 1)];
}

/* Both rings number their workers by their own sorted lists; "worker-12" gives one number for
 * both. */
static int number_of(const char *worker)
{
    return (int)strtol(strchr(worker, '-') + 1, NULL, 10) - 1;
}

static int pixel_at(const picture *p, int x, int y)
{
    double dx = x + 0.5 - SIZE / 2.0, dy = y + 0.5 - SIZE / 2.0, radius = hypot(dx, dy);
    bool outside = radius <= outer[0] && radius >= outer[1];
    bool inside = p->after != NULL && radius <= inner[0] && radius >= inner[1];
    if (!outside && !inside)
        return EMPTY;
    double turn = atan2(dx, -dy) / (2 * acos(-1.0)); /* 0 at the top, clockwise */
    int buckets = mr_ring_bucket_count(p->ring);
    int bucket = (int)((turn < 0 ? turn + 1 : turn) * buckets) % buckets;
    const char *before = mr_ring_bucket_owner(p->ring, bucket);
    if (outside)
        return number_of(before);
    const char *now = mr_ring_bucket_owner(p->after, bucket);
    return strcmp(before, now) == 0 ? STAYED : number_of(now);
}

static void put_letter(int pixel)
{
    (void)putchar(pixel == EMPTY ? ' ' : pixel == STAYED ? '.' : letter_of(pixel));
}

static int ink(int pixel)
{
    return pixel == STAYED ? 238 : color_of(pixel);
}

static void put_blocks(int top, int bottom)
{
    if (top == EMPTY && bottom == EMPTY)
        (void)putchar(' ');
    else if (bottom == EMPTY)
        (void)printf("\033[38;5;%dm▀\033[0m", ink(top));
    else if (top == EMPTY)
        (void)printf("\033[38;5;%dm▄\033[0m", ink(bottom));
    else
        (void)printf("\033[38;5;%d;48;5;%dm▀\033[0m", ink(top), ink(bottom));
}

/* What stands in the middle of the hole, a line each; "" for none. */
static void center_text(const picture *p, int row, char out[SIZE])
{
    out[0] = '\0';
    if (row == ROWS / 2 - 1)
        (void)snprintf(out, SIZE, "%zu worker%s", mr_ring_worker_count(p->ring),
                       mr_ring_worker_count(p->ring) == 1 ? "" : "s");
    else if (row == ROWS / 2)
        (void)snprintf(out, SIZE, "%d buckets", mr_ring_bucket_count(p->ring));
    else if (row == ROWS / 2 + 1 && p->after != NULL)
        (void)snprintf(out, SIZE, "then %zu", mr_ring_worker_count(p->after));
}

static void put_row(const picture *p, int row)
{
    char text[SIZE] = "";
    center_text(p, row, text);
    int length = (int)strlen(text), start = (SIZE - length) / 2;
    for (int x = 0; x < SIZE; x++) {
        int top = pixel_at(p, x, 2 * row), bottom = pixel_at(p, x, 2 * row + 1);
        if (x >= start && x < start + length)
            (void)putchar(text[x - start]);
        else if (p->letters)
            put_letter(top != EMPTY ? top : bottom);
        else
            put_blocks(top, bottom);
    }
}

/* All workers of both rings are worker-1 to worker-`total`. */
static int total_of(const picture *p)
{
    int total = 0;
    const mr_ring *rings[] = {p->ring, p->after};
    for (int i = 0; i < 2 && rings[i] != NULL; i++)
        for (size_t k = 0; k < mr_ring_worker_count(rings[i]); k++) {
            int number = number_of(mr_ring_worker(rings[i], k)) + 1;
            total = number > total ? number : total;
        }
    return total;
}

static void put_legend(const picture *p, int row, int total)
{
    int worker = row - 1;
    if (worker < 0 || worker >= LEGEND || worker >= total)
        return;
    if (worker == LEGEND - 1 && total > LEGEND)
        (void)printf("   and %d more", total - worker);
    else if (p->letters)
        (void)printf("   %c  worker-%d", letter_of(worker), worker + 1);
    else
        (void)printf("   \033[38;5;%dm██\033[0m worker-%d", color_of(worker), worker + 1);
}

void ring_draw(const mr_ring *ring, const mr_ring *after)
{
    picture p = {.ring = ring,
                 .after = after,
                 .letters =
                     getenv("NO_COLOR") != NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0};
    int total = total_of(&p);
    for (int row = 0; row < ROWS; row++) {
        (void)fputs("  ", stdout);
        put_row(&p, row);
        put_legend(&p, row, total);
        (void)putchar('\n');
    }
    (void)putchar('\n');
}
