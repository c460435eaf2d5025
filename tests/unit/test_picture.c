/* The leader's picture of the fleet: what is in it, who counts, and JSON that is not what it should
 * be. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "cluster/picture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void look(const char *json, mr_absent *absent, mr_fleet *fleet, char **stale)
{
    mr_error *error = mr__picture_read(json, absent, fleet, stale);
    if (error != NULL)
        fail_msg("%s: %s", json, mr_error_message(error));
}

/* How many members the picture has. */
static size_t members(const char *json, mr_absent *absent)
{
    mr_fleet fleet = {0};
    char *stale = NULL;
    look(json, absent, &fleet, &stale);
    size_t count = fleet.member_count;
    mr__fleet_free(&fleet);
    free(stale);
    return count;
}

static const char full[] =
    "{\"workers\": ["
    " {\"id\": \"a\", \"consumers\": [\"x\", \"y\"], \"draining\": false, \"stale\": false,"
    "  \"absent\": false},"
    " {\"id\": \"b\", \"consumers\": [], \"draining\": true, \"stale\": false, \"absent\": false},"
    " {\"id\": \"c\", \"consumers\": [\"x\"], \"draining\": false, \"stale\": true,"
    "  \"absent\": true},"
    " {\"id\": \"d\", \"consumers\": [\"x\"], \"draining\": true, \"stale\": true,"
    "  \"absent\": false}],"
    " \"assignments\": [{\"name\": \"x\", \"owner\": \"a\"}, {\"name\": \"y\", \"owner\": null},"
    "  {\"name\": \"z\"}]}";

static void what_is_in_it(void **state)
{
    (void)state;
    mr_absent absent = {0};
    mr_fleet fleet = {0};
    char *stale = NULL;
    look(full, &absent, &fleet, &stale);
    assert_int_equal(fleet.member_count, 1);
    assert_string_equal(fleet.members[0].id, "a");
    assert_int_equal(fleet.members[0].count, 2);
    assert_true(mr__member_can(&fleet.members[0], "y"));
    assert_int_equal(fleet.duty_count, 3);
    assert_string_equal(fleet.duties[0].owner, "a");
    assert_null(fleet.duties[1].owner);
    assert_null(fleet.duties[2].owner);
    assert_string_equal(stale, "{\"c\",\"d\"}");
    mr__fleet_free(&fleet);
    free(stale);
    mr__absent_free(&absent);
}

#define WORKER(id, absent) "{\"id\": \"" id "\", \"consumers\": [\"x\"], \"absent\": " absent "}"
#define FLEET(a, b) "{\"workers\": [" WORKER("a", a) ", " WORKER("b", b) "], \"assignments\": []}"

/* One look may fall between a broken connection and the next: only two in a row count. */
static void absent_twice(void **state)
{
    (void)state;
    mr_absent absent = {0};
    assert_int_equal(members(FLEET("false", "false"), &absent), 2);
    assert_int_equal(members(FLEET("false", "true"), &absent), 2);
    assert_int_equal(members(FLEET("false", "false"), &absent), 2);
    assert_int_equal(members(FLEET("false", "true"), &absent), 2); /* it begins anew */
    assert_int_equal(members(FLEET("true", "false"), &absent), 2); /* another one */
    assert_int_equal(members(FLEET("true", "true"), &absent), 1);
    assert_int_equal(members(FLEET("true", "true"), &absent), 0);
    assert_int_equal(absent.count, 2);
    assert_int_equal(members(FLEET("false", "true"), &absent), 1);
    assert_int_equal(members("{\"workers\": [], \"assignments\": []}", &absent), 0);
    assert_int_equal(absent.count, 0);
    assert_int_equal(members(FLEET("true", "false"), &absent), 2);
    mr__absent_free(&absent);
}

/* A picture that cannot be read changes nothing of what was known. */
static void a_bad_one_keeps_who_was_absent(void **state)
{
    (void)state;
    mr_absent absent = {0};
    assert_int_equal(members(FLEET("true", "false"), &absent), 2);
    mr_fleet fleet = {0};
    char *stale = NULL;
    mr_error *error =
        mr__picture_read("{\"workers\": [{\"absent\": true}]}", &absent, &fleet, &stale);
    assert_non_null(error);
    assert_int_equal(mr_error_code(error), MR_E_INTERNAL);
    mr_error_free(error);
    assert_null(stale);
    assert_null(fleet.members);
    assert_int_equal(absent.count, 1);
    assert_int_equal(members(FLEET("true", "false"), &absent), 1);
    mr__absent_free(&absent);
}

/* Whatever it is: an error or a fleet, never a crash, and nothing leaks. */
static void try_it(const char *json)
{
    mr_absent absent = {0};
    for (int i = 0; i < 2; i++) {
        mr_fleet fleet = {0};
        char *stale = NULL;
        mr_error *error = mr__picture_read(json, &absent, &fleet, &stale);
        if (error == NULL)
            error = mr__assign(&fleet, MR_ASSIGN_STICKY);
        if (error == NULL)
            error = mr__assign(&fleet, MR_ASSIGN_ROUND_ROBIN);
        mr_error_free(error);
        mr__fleet_free(&fleet);
        free(stale);
    }
    mr__absent_free(&absent);
}

static void odd_json(void **state)
{
    (void)state;
    static const char *const odd[] = {
        "",
        " ",
        "null",
        "true",
        "1",
        "\"text\"",
        "[]",
        "{}",
        "{",
        "{\"workers\": null, \"assignments\": null}",
        "{\"workers\": {}, \"assignments\": 7}",
        "{\"workers\": [null], \"assignments\": []}",
        "{\"workers\": [1, \"a\", [], {}], \"assignments\": []}",
        "{\"workers\": [{\"id\": null}]}",
        "{\"workers\": [{\"id\": 5, \"consumers\": [\"x\"]}]}",
        "{\"workers\": [{\"id\": \"\"}]}",
        "{\"workers\": [{\"id\": \"a\"}]}",
        "{\"workers\": [{\"id\": \"a\", \"consumers\": null}]}",
        "{\"workers\": [{\"id\": \"a\", \"consumers\": \"x\"}]}",
        "{\"workers\": [{\"id\": \"a\", \"consumers\": {\"x\": 1}}]}",
        "{\"workers\": [{\"id\": \"a\", \"consumers\": [null, 1, \"\", {}, \"x\", \"x\"]}]}",
        "{\"assignments\": [{\"name\": \"x\"}, {\"name\": \"x\"}, {\"name\": \"\"}]}",
        "{\"workers\": [{\"id\": \"a\", \"stale\": \"yes\", \"absent\": 1, \"draining\": null}]}",
        "{\"workers\": [{\"id\": \"a\", \"stale\": true}, {\"id\": \"a\", \"stale\": true}]}",
        "{\"workers\": [{\"id\": \"a\", \"absent\": true}, {\"id\": \"a\", \"absent\": true}]}",
        "{\"workers\": [], \"assignments\": [null]}",
        "{\"workers\": [], \"assignments\": [{\"name\": null, \"owner\": \"a\"}]}",
        "{\"workers\": [], \"assignments\": [{\"name\": 3}]}",
        "{\"workers\": [], \"assignments\": [{\"name\": \"x\", \"owner\": 3}]}",
        "{\"workers\": [], \"assignments\": [{\"name\": \"x\", \"owner\": \"gone\"}]}",
        "{\"workers\": [{\"id\": \"a\\u0000b\"}]}",
        "{\"workers\": [{\"id\": \"\xFF\"}]}",
        "{\"workers\": [{\"id\": \"a\", \"id\": \"b\"}]}",
        "{\"workers\": [{\"id\": \"a\"}]} trailing",
        "{\"workers\": [{\"id\": \"q\\\"}', NULL, 0); --\", \"stale\": true}]}",
    };
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
        try_it(odd[i]);
}

/* Every prefix of a good picture, and every byte of it changed. */
static void damaged_json(void **state)
{
    (void)state;
    char text[sizeof(full)];
    for (size_t cut = 0; cut < sizeof(full); cut++) {
        memcpy(text, full, cut);
        text[cut] = '\0';
        try_it(text);
    }
    static const char bytes[] = "\"{}[],:x0\\ n";
    for (size_t at = 0; at + 1 < sizeof(full); at++) {
        for (const char *byte = bytes; *byte != '\0'; byte++) {
            memcpy(text, full, sizeof(full));
            text[at] = *byte;
            try_it(text);
        }
    }
}

static void very_deep_and_very_long(void **state)
{
    (void)state;
    enum { DEEP = 100000 };
    char *deep = malloc(DEEP + 1);
    assert_non_null(deep);
    memset(deep, '[', DEEP);
    deep[DEEP] = '\0';
    try_it(deep);
    free(deep);
    size_t room = 200 * 5000 + 100, used = 0;
    char *wide = malloc(room);
    assert_non_null(wide);
    used += (size_t)snprintf(wide, room, "{\"workers\": [%s], \"assignments\": [",
                             WORKER("a", "false"));
    for (int i = 0; i < 5000; i++)
        used += (size_t)snprintf(wide + used, room - used, "%s{\"name\": \"x\", \"owner\": \"a\"}",
                                 i == 0 ? "" : ",");
    (void)snprintf(wide + used, room - used, "]}");
    try_it(wide);
    free(wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_in_it),
        cmocka_unit_test(absent_twice),
        cmocka_unit_test(a_bad_one_keeps_who_was_absent),
        cmocka_unit_test(odd_json),
        cmocka_unit_test(damaged_json),
        cmocka_unit_test(very_deep_and_very_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
