/* The benchmark's table for people, line by line as rows finish, and its JSON for scripts. */
#include "bench.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct report {
    json_t *rows;
    int passed;
};

static const char *const line_format = "%-10s %-50s %13s %13s %7s  %-8s %s\n";

void bench_report_begin(bench *b)
{
    static struct report report;
    report.rows = json_array();
    b->report = &report;
    if (b->json)
        return;
    int version = PQserverVersion(b->conn);
    (void)printf("PostgreSQL %d.%d, %ld cores, median of %d interleaved runs a side%s\n\n",
                 version / 10000, version % 10000, sysconf(_SC_NPROCESSORS_ONLN), b->runs,
                 b->quick ? ", quick" : "");
    double load = 0;
    if (getloadavg(&load, 1) == 1 && load > (double)sysconf(_SC_NPROCESSORS_ONLN))
        (void)printf("The machine is busy (load %.1f): a side that keeps a core busy, most often\n"
                     "Millrace's, loses more than one that waits, so ratios come out low.\n\n",
                     load);
    (void)printf(line_format, "row", "what, and what stands beside it", "millrace", "beside",
                 "ratio", "needs", "");
    (void)fflush(stdout);
}

static void put_figure(char out[24], double value, const char *unit)
{
    if (value >= 1e6)
        (void)snprintf(out, 24, "%.2f M %s", value / 1e6, unit);
    else if (value >= 1e4)
        (void)snprintf(out, 24, "%.1f k %s", value / 1e3, unit);
    else
        (void)snprintf(out, 24, value >= 100 ? "%.0f %s" : "%.2f %s", value, unit);
}

static void keep(bench *b, const bench_row *row, double ours, double theirs, double ratio,
                 const char *verdict)
{
    json_t *item = json_pack("{s:s, s:s, s:s, s:f}", "name", row->name, "what", row->what, "unit",
                             row->unit, "millrace", ours);
    if (!row->alone) {
        double ratios[BENCH_RUNS_MOST];
        for (int i = 0; i < row->runs; i++)
            ratios[i] = row->ours[i] / row->theirs[i];
        json_object_set_new(item, "beside", json_string(row->beside));
        json_object_set_new(item, "beside_figure", json_real(theirs));
        json_object_set_new(item, "ratio", json_real(ratio));
        json_object_set_new(item, "ratio_least", json_real(bench_quantile(ratios, row->runs, 0)));
        json_object_set_new(item, "ratio_most", json_real(bench_quantile(ratios, row->runs, 1)));
    }
    if (row->need != BENCH_INFO) {
        const char *relation = row->need == BENCH_AT_LEAST ? "at_least" : "at_most";
        json_object_set_new(item, relation, json_real(row->limit));
        json_object_set_new(item, "pass", json_boolean(verdict[0] == 'P'));
    }
    json_array_append_new(b->report->rows, item);
}

static const char *judge(bench *b, const bench_row *row, double figure)
{
    if (row->need == BENCH_INFO)
        return "";
    bool good = row->need == BENCH_AT_LEAST ? figure >= row->limit : figure <= row->limit;
    if (good)
        b->report->passed++;
    else
        b->failed++;
    return good ? "PASS" : "FAIL";
}

void bench_report_row(bench *b, const bench_row *row)
{
    double ratios[BENCH_RUNS_MOST] = {0};
    for (int i = 0; i < row->runs && !row->alone; i++)
        ratios[i] = row->ours[i] / row->theirs[i];
    double ours = bench_median(row->ours, row->runs);
    double theirs = row->alone ? 0 : bench_median(row->theirs, row->runs);
    double ratio = row->alone ? 0 : bench_median(ratios, row->runs);
    const char *verdict = judge(b, row, row->alone ? ours : ratio);
    keep(b, row, ours, theirs, ratio, verdict);
    if (b->json)
        return;
    char left[24], right[24] = "", times[24] = "", need[24] = "";
    put_figure(left, ours, row->unit);
    if (!row->alone) {
        put_figure(right, theirs, row->unit);
        (void)snprintf(times, sizeof(times), "%.2fx", ratio);
    }
    if (row->need != BENCH_INFO)
        (void)snprintf(need, sizeof(need), "%s %.*f",
                       row->need == BENCH_AT_LEAST ? ">=" : "<=", row->limit < 10 ? 1 : 0,
                       row->limit);
    (void)printf(line_format, row->name, row->what, left, right, times, need, verdict);
    if (!row->alone)
        (void)printf("%-10s beside: %s\n", "", row->beside);
    (void)fflush(stdout);
}

void bench_report_value(bench *b, const char *name, const char *what, double value,
                        const char *unit)
{
    bench_row row = {
        .name = name, .what = what, .unit = unit, .ours = {value}, .runs = 1, .alone = true};
    bench_report_row(b, &row);
}

void bench_report_end(bench *b)
{
    if (b->json) {
        json_t *all =
            json_pack("{s:i, s:i, s:b, s:i, s:i, s:O}", "server_version", PQserverVersion(b->conn),
                      "runs", b->runs, "quick", b->quick, "passed", b->report->passed, "failed",
                      b->failed, "rows", b->report->rows);
        (void)json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        (void)fputc('\n', stdout);
        json_decref(all);
    } else {
        (void)printf("\n%d passed, %d failed\n", b->report->passed, b->failed);
    }
    json_decref(b->report->rows);
}
